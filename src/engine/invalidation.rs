//! Invalidations: acknowledged, or sent again until they are, before their name is read and in the background.

use super::{
    breaker::{Access, Breaker},
    core::Engine,
    fill_set::FillSet,
    frontend::StoreAs,
    pending_invalidations::{Attempt, MAX_PENDING, Name},
    permit::{FillPermit, FillRight},
    resource::Resource,
};
use crate::{
    backoff,
    clock::{self, Timestamp},
    error::{Error, ErrorKind},
    key::CacheKey,
    store::{
        entry::{Kind, Meta, Payload},
        error::StoreError,
        lease::{Lease, LeaseRequest, Leaves},
        port::FillCondition,
    },
    sync::shared::Shared,
    telemetry::{self, FrontEnd},
};
use futures_util::{
    FutureExt, StreamExt,
    future::{join_all, ready},
    stream,
};
use std::{future::Future, slice, sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

impl Engine {
    /// Invalidates the resources, and returns the first error. Other invalidations go on after it. All are pending after
    /// the first poll, up to half of the table, because no answer of the store counts while that is full.
    ///
    /// Cancel safe once polled: the work is done in a task.
    pub(crate) async fn invalidate_all(&self, resources: Vec<Resource>) -> Result<(), Error> {
        let request = |each: Resource| each.request_invalidation(Leaves::Nothing);
        let (mut rest, room) = (resources.into_iter(), MAX_PENDING / 2);
        let pending: Vec<_> =
            rest.by_ref().take(room.saturating_sub(self.invalidations.pending())).map(request).collect();
        let sent = stream::iter(pending.into_iter().chain(rest.map(request))).buffer_unordered(MAX_INVALIDATIONS);
        let all = self.tasks.spawn(sent.fold(Ok(None), |all, one| ready(all.and(one))));
        let all = all.await.unwrap_or_else(|ended| Err(StoreError::new(ended)));
        all.map(drop).map_err(not_acknowledged("the invalidations were not acknowledged"))
    }
}

impl Resource {
    /// Drops the entry and the lease; for a URL, the entries and leases of all its methods and schemes. Requests made
    /// afterwards join no read and no fetch that this engine had begun before.
    ///
    /// Cancel safe: the work is done in a task, which continues when the caller is dropped.
    pub(crate) async fn invalidate(self) -> Result<(), Error> {
        let failed = not_acknowledged("the invalidation was not acknowledged");
        self.request_invalidation(Leaves::Nothing).await.map(drop).map_err(failed)
    }

    /// Lets the values expire, otherwise as [`invalidate`](Self::invalidate). If it is not acknowledged, an invalidation is
    /// pending.
    pub(crate) async fn expire(self) -> Result<(), Error> {
        let failed = not_acknowledged("the expiry was not acknowledged");
        self.request_invalidation(Leaves::StaleValues).await.map(drop).map_err(failed)
    }

    /// Stores a value: an invalidation, a lease and a fill. The first script drops the entry and grants the lease. The fill
    /// under this lease is refused if another operation has taken or dropped the lease since, and the put is then done: the
    /// later operation counts. If the first script is not acknowledged, the invalidation stays pending, and never the value.
    ///
    /// Cancel safe: the work is done in a task, which continues when the caller is dropped.
    pub(crate) async fn put(self, payload: Payload, store_as: StoreAs) -> Result<(), Error> {
        let engine = self.engine.clone();
        let not_stored = not_acknowledged("the put was not acknowledged");
        let put = engine.tasks.spawn(async move {
            let mut permit = FillPermit::new(Arc::new(self.clone()));
            // Without the stamp of its lease, because the value may be older than a refresh that waits.
            let meta = Meta::new(Kind::Value, permit.token(), Timestamp::now());
            let fill_set = FillSet::new(meta, store_as, payload, &[]);
            let leaves = Leaves::Lease(LeaseRequest::new(meta.id, self.config.lease_ttl));
            let lease = self.request_invalidation(leaves).await.map_err(not_stored)?;
            permit.right = lease.map_or(FillRight::None, FillRight::Lease);
            if let Some(lease) = lease {
                self.fill(FillCondition::Lease(lease), &fill_set).await.map_err(not_stored)?;
                permit.right = FillRight::None;
            }
            Ok(())
        });
        put.await.unwrap_or_else(|dropped| Err(not_stored(StoreError::new(dropped))))
    }

    /// Invalidates as [`invalidate`](Self::invalidate) does, but does not wait while the circuit breaker is open. Reports
    /// whether the store has acknowledged.
    ///
    /// Cancel safe: the task is spawned before the future is polled.
    pub(crate) fn invalidate_or_defer(self) -> impl Future<Output = bool> {
        let attempt = self.request_invalidation(Leaves::Nothing);
        let _ = attempt.clone().now_or_never();
        async move {
            tokio::select! {
                biased;
                answer = attempt => answer.is_ok(),
                () = self.breaker_is(&Access::ALL, Breaker::is_open) => false,
            }
        }
    }

    /// Makes the invalidation pending, and this process forget the cache keys. What is sent again leaves nothing.
    fn request_invalidation(&self, leaves: Leaves) -> Attempt {
        let connection = self.engine.store.connection(&self.key);
        let expires_over = matches!(leaves, Leaves::StaleValues).then_some(connection);
        let attempt = self.engine.invalidations.request(self.name(), expires_over, |request, may_expire| {
            let leaves = if expires_over.is_some() && !may_expire { Leaves::Nothing } else { leaves };
            self.send_invalidation(request, leaves, connection)
        });
        self.forget();
        attempt
    }

    /// Sends the invalidation, which is pending, in a task of this runtime that the first poll of the attempt spawns. The
    /// task changes the table, and so it must not run within the lock of a [`Shared`], which the table asks for its
    /// progress.
    fn send_invalidation(&self, request: u64, leaves: Leaves, connection: u64) -> Attempt {
        let (engine, resource, runtime) = (self.engine.clone(), self.clone(), tokio::runtime::Handle::current());
        Shared::new(async move {
            let send = async move {
                let answer = resource.drop_everywhere(request, leaves, connection).await;
                answer.inspect_err(|error| send_in_background(&resource.engine, Some((resource.name(), error.clone()))))
            };
            engine.tasks.spawn_on(send, &runtime).await.unwrap_or_else(|ended| Err(StoreError::new(ended)))
        })
    }

    /// Drops the entries, except for what is left. Values are left only over this connection, because another connection
    /// may have lost an invalidation before, or if there was none yet (0). If the store acknowledges, this process forgets
    /// the cache keys as well. Fails if no connection lasts until it has acknowledged.
    async fn drop_everywhere(
        &self,
        request: u64,
        leaves: Leaves,
        connection: u64,
    ) -> Result<Option<Lease>, StoreError> {
        let (present, all) = (|| self.engine.store.connection(&self.key), self.invalidated());
        for _ in 0..MAX_CONNECTIONS {
            let before = present();
            // The lease of the last one counts, because each one drops that of the one before.
            let lease = match leaves {
                Leaves::Lease(_) => self.drop_entries(slice::from_ref(&self.key), leaves).await?,
                Leaves::StaleValues if [0, before].contains(&connection) => self.drop_entries(&all, leaves).await?,
                _ => self.drop_entries(&all, Leaves::Nothing).await?,
            };
            // One that was replaced meanwhile may have acknowledged for a server that is gone, also if it was the first.
            if present() == before {
                // After the store has dropped the entries, because a read that began before may have returned an old one.
                self.forget();
                self.engine.invalidations.acknowledged(&self.key.to_invalidated(), request, before, Timestamp::now());
                return Ok(lease);
            }
        }
        Err(StoreError::new("each connection was replaced before it had acknowledged"))
    }

    /// Makes this process forget what it has of the cache keys, or is about to get.
    fn forget(&self) {
        self.engine.versions.bump(&self.key);
        self.engine.flights.forget(&self.invalidated());
    }

    fn name(&self) -> Name {
        (self.key.to_invalidated(), self.config.clone())
    }

    /// Returns the cache keys that an invalidation of this one drops.
    fn invalidated(&self) -> Vec<CacheKey> {
        self.key.to_invalidated().invalidated()
    }

    /// Asks the store by this call. Its answer does not count if an invalidation of this cache key was pending meanwhile, or
    /// if the resource has changed. Then sends the invalidation, unless it is acknowledged by now, and asks again.
    ///
    /// Looks again after the answer, which may have come from another server than the one with the acknowledged
    /// invalidation. What is invalidated from now on does not concern this call. Fails if no connection lasts.
    ///
    /// PERF: one load if nothing was invalidated recently. The future of the question is made in its place, not moved there.
    pub(super) async fn settled<T, R: Future<Output = Result<T, StoreError>>>(
        &self,
        key: &CacheKey,
        ask: impl Fn() -> R,
    ) -> Result<T, StoreError> {
        let begun = (!self.engine.invalidations.is_empty()).then(|| self.engine.versions.now());
        if begun.is_none() || !self.is_unsettled(key) {
            let answer = ask().await?;
            // If an invalidation was repeated meanwhile, the question may have come first.
            if begun.is_none_or(|begun| !self.is_unsettled(key) && self.engine.versions.counts(&self.key, begun)) {
                return Ok(answer);
            }
        }
        Box::pin(async {
            for _ in 0..MAX_CONNECTIONS {
                let connection = self.engine.store.connection(key);
                self.settle(key).await?;
                let answer = ask().await?;
                // What was invalidated before is acknowledged, but only over this connection.
                if self.engine.store.connection(key) == connection {
                    return Ok(answer);
                }
            }
            Err(StoreError::new("each connection was replaced before it had answered"))
        })
        .await
    }

    /// Reports whether the store's answers about this cache key do not count now.
    fn is_unsettled(&self, key: &CacheKey) -> bool {
        let Engine { invalidations, store, .. } = &*self.engine;
        invalidations.concerns(key, |key| store.connection(key))
    }

    /// Sends the pending invalidation of this cache key, or joins the attempt in flight. An error means that no answer
    /// about the cache key counts.
    async fn settle(&self, key: &CacheKey) -> Result<(), StoreError> {
        self.repeat_lost(None);
        self.check_breaker(Access::Write)?;
        let resource = Self { key: key.to_invalidated(), ..self.clone() };
        if let Some(attempt) = resource.attempt() {
            // The attempt may have a longer timeout, that of its request.
            let late = |_| Err(StoreError::timed_out(self.config.store_timeout));
            // An invalidation that is requested meanwhile does not concern this read.
            return timeout(self.config.store_timeout, attempt).await.unwrap_or_else(late).map(drop);
        }
        // The table may be full.
        let is_unsettled = self.is_unsettled(key);
        (!is_unsettled).then_some(()).ok_or_else(|| StoreError::new("too many invalidations are not acknowledged yet"))
    }

    /// Returns the attempt in flight at the pending invalidation of this name, or begins one. `None` if it is not pending
    /// any more.
    fn attempt(&self) -> Option<Attempt> {
        self.engine.invalidations.attempt(&self.key, |request| self.send_invalidation(request, Leaves::Nothing, 0))
    }

    /// Makes the invalidations pending that the store may have lost, and this process forget what it has read since. Sends
    /// them, and what a task that has ended with its runtime has left. To be called after an answer, with the time when
    /// its request was sent.
    pub(super) fn repeat_lost(&self, sent_at: Option<Timestamp>) {
        let Engine { invalidations, store, .. } = &*self.engine;
        if invalidations.is_empty() {
            return;
        }
        let answer = sent_at.map(|sent_at| (store.connection(&self.key), sent_at));
        if let Some(lost) = invalidations.take_lost(answer, |key| store.connection(key)) {
            if let Some((key, config)) = lost.first() {
                telemetry::replaying_invalidations(&config.meter, key, lost.len());
            }
            lost.into_iter().for_each(|name| resource(&self.engine, name).forget());
            send_in_background(&self.engine, None);
        }
    }
}

fn not_acknowledged(what: &'static str) -> impl Fn(StoreError) -> Error + Copy {
    move |error| Error::with_source(ErrorKind::Store, what, error.into())
}

fn resource(engine: &Arc<Engine>, (key, config): Name) -> Resource {
    Resource { engine: engine.clone(), config, key, front_end: FrontEnd::Fetch, deadline: None, soft_until: None }
}

/// Spawns the task that sends pending invalidations again, unless there are none or it is running. `failed` is one that
/// has just failed.
fn send_in_background(engine: &Arc<Engine>, failed: Option<(Name, StoreError)>) {
    if let Some(claim) = engine.invalidations.claim_sender() {
        engine.tasks.spawn(send_pending(engine.clone(), claim, failed));
    }
}

/// Sends pending invalidations until there are none, at most [`MAX_PER_SECOND`] a second because each costs a fetch, or
/// as fast as the store acknowledges them once there were too many. While a circuit breaker is open, its invalidations are
/// not sent, but it is probed. Reports the ones that fail, and the end if it has reported any.
async fn send_pending(engine: Arc<Engine>, _claim: Arc<()>, failed: Option<(Name, StoreError)>) {
    let (mut were_too_many, mut reported) = (false, None);
    let mut report = |name: &Name, error: &StoreError| {
        if telemetry::invalidations_failed(&name.1.meter, &name.0, engine.invalidations.pending(), error) {
            reported = Some(name.clone());
        }
    };
    failed.iter().for_each(|(name, error)| report(name, error));
    sleep(backoff::poll(0, clock::random_unit())).await;
    while let Some(names) = engine.invalidations.to_send() {
        for chunk in names.chunks(MAX_PER_SECOND) {
            were_too_many |= engine.invalidations.pending() >= MAX_PENDING;
            let attempts = chunk.iter().map(|name| {
                let resource = resource(&engine, name.clone());
                async move {
                    let (is_sent, answer) = match resource.check_breaker(Access::Write) {
                        Ok(()) => (true, resource.attempt()?.await),
                        Err(error) => (false, Err(error)),
                    };
                    Some((name, is_sent, answer))
                }
            });
            let answers: Vec<_> = join_all(attempts).await.into_iter().flatten().collect();
            if let Some((name, _, Err(error))) = answers.iter().find(|(.., answer)| answer.is_err()) {
                report(name, error);
            }
            let is_acknowledged = answers.iter().any(|(.., answer)| answer.is_ok());
            if !(were_too_many && is_acknowledged) {
                // Not shortened: the server may have executed what it has not acknowledged in time.
                let sent = answers.iter().filter(|(_, is_sent, _)| *is_sent).count();
                sleep(Duration::from_secs(1) * sent as u32 / MAX_PER_SECOND as u32).await;
            }
            if !is_acknowledged && !answers.is_empty() {
                tokio::select! {
                    () = sleep(backoff::poll(u32::MAX, clock::random_unit())) => {}
                    () = engine.breakers.changed() => {}
                }
            }
        }
    }
    if let Some((key, config)) = reported {
        telemetry::invalidations_acknowledged(&config.meter, &key);
    }
}

/// Maximum number of invalidations of one call that are in flight. They share the round trips of a connection.
const MAX_INVALIDATIONS: usize = 256;
/// Maximum number of connections over which one attempt sends an invalidation, or a lookup beside one asks again. A
/// server may close each one.
const MAX_CONNECTIONS: usize = 4;
/// Number of pending invalidations that are sent at once, and in a second.
const MAX_PER_SECOND: usize = 100;
