//! The guard on a lock of one's choice: a recipe decides who computes, a fence what is stored.
//!
//! Origin: `cache_lookup` of "Redis as a mutex service" (seed 004): read, lock, read again, compute, store, unlock. There
//! whoever has the lock stores; a holder that is late, or a recipe that lets two through, stores what is old. Here the
//! lease of the guard stands beside the lock, and names who was let through last. Only that one's fill lands.

mod holdings;
mod shared;

use super::{
    Address, Answer, Ask, Entry, Filled, Hold, Lead, Lease, Listener, RedisStore, Right, Store, StoreError, Timestamp,
    Token, Tombstone, Track, Write, redis::By,
};
use crate::{
    lock::{LockError, LockErrorKind, Recipe, behind::Behind, hub::Hub, recipe::Attempt, wanted::given_to_nobody},
    wire::IntoServer,
};
use holdings::{Holding, Holdings};
use shared::{Ears, LetIn, Shared};
use std::{
    fmt,
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

/// Entries in Redis, as in a [`RedisStore`], filled under a lock of any recipe.
///
/// The default store needs none of this: its lease is one script, and one round trip. This is for those who want to see
/// what a recipe is worth, or have to live with the one that their server allows.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use stampede_guard::{StampedeGuard, lock::SetPx, redis, store::LockedStore};
///
/// let store = LockedStore::new(redis::Client::open("redis://127.0.0.1/")?, SetPx)?;
/// let guard = StampedeGuard::new(store);
/// # Ok(())
/// # }
/// ```
///
/// # What it promises
///
/// What is stored is right with every recipe: a fill lands only if nobody was let through after its computation began,
/// and nothing was invalidated. How often a computation is made twice depends on the recipe: where one lets two through, or
/// takes the lock from its holder unnoticed, the second one computes as well, and what it makes is stored.
///
/// # What it costs
///
/// A miss is five commands, one after the other: read, lock, read again, store, unlock; the default store needs three. An
/// [operation timeout](crate::StampedeGuard::op_timeout) has to be long enough for three of them. Locks go over a
/// connection of their own.
///
/// Those who wait are woken by message, as with the default store, also if the recipe itself spins. Only who comes in the
/// moment after the lock was acquired, or before it was released, polls, every 25 to 50 ms at first.
///
/// # How long a lock lives
///
/// As long as the [lease](crate::StampedeGuard::lease), and it is extended with it. A recipe that is not
/// [extendable](crate::lock::Guarantees::extendable) locks for [`hold`](Self::hold), and if its holder dies, nobody
/// computes for so long; others wait for their wait budget then.
///
/// An invalidation takes the right to fill from the holder, and not its lock, which only the holder can release. It does
/// so as soon as it hears of it: by message at once, else when it extends its lease next, within a third of that.
///
/// # Names
///
/// Entries and leases are named as in a [`RedisStore`], and locks beside them: `{sg:ruser:42}:set-px.` and a hash. A
/// [`Lock`](crate::Lock) never has the name of one of these.
pub struct LockedStore {
    shared: Arc<Shared>,
    hold: Duration,
}

impl LockedStore {
    /// Over connections to this server: one for entries, one for locks, and one for messages if it is a client, or one is
    /// named by [`Server::wakes_from`](crate::lock::Server::wakes_from); without, those who wait poll. All processes that
    /// share a namespace have to use the same recipe.
    ///
    /// # Errors
    ///
    /// [`Recipe`](LockErrorKind::Recipe) if a holder that dies does not free the lock
    /// ([`crash_frees`](crate::lock::Guarantees::crash_frees)): the key would never be computed again.
    pub fn new(redis: impl IntoServer, recipe: impl Recipe) -> Result<Self, LockError> {
        if !recipe.guarantees().crash_frees {
            let reason = "a holder that dies would lock its key for ever, so the guard does not take this recipe: take \
                          another one, or in place of SetMembership::default() SetMembership::with_expiry()";
            return Err(LockError::new(LockErrorKind::Recipe, &recipe.name().into(), reason));
        }
        let server = redis.into_server();
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| Shared {
            redis: RedisStore::heard_by(&server, |wakes| Arc::new(Ears { wakes, shared: shared.clone() })),
            hub: Arc::new(Hub::new(&server)),
            recipe: Arc::new(recipe),
            holdings: Holdings::default(),
        });
        Ok(Self { shared, hold: Duration::from_secs(60) })
    }

    /// How long a lock lives whose recipe cannot extend it: at least as long as the longest computation, as after this
    /// time another one begins. Default: 60 s, which is that of [`max_fetch`](crate::StampedeGuard::max_fetch); from 10 ms
    /// to a day, values outside are clamped. Recipes that can extend do not need it.
    #[must_use]
    pub fn hold(self, span: Duration) -> Self {
        Self { hold: span.clamp(Duration::from_millis(10), Duration::from_secs(24 * 3600)), ..self }
    }

    /// Dropped while it asks for the lock, a lock that is granted is released behind; dropped while it asks for the lease,
    /// both are given back.
    async fn lead_now(&self, at: &Address, ask: Ask) -> Result<Lead, StoreError> {
        let shared = &self.shared;
        let span = if shared.recipe.guarantees().extendable { ask.lease } else { self.hold };
        let until = Timestamp::now().after(span);
        let held = match shared.holdings.of(ask.token) {
            Some(held) => held, // it asks once more
            None => {
                let attempt = shared.recipe.attempt(shared.claim(at, ask.token, span));
                match Behind::new(&shared.hub.behind, attempt, given_to_nobody).await? {
                    Attempt::Acquired { held, .. } => held,
                    Attempt::Busy(_) => return shared.redis.lead_by(By::LockBusy, at, ask).await,
                }
            }
        };
        let holding = Holding { at: at.clone(), hash: at.hash(), held, span, until };
        let let_in = Box::pin(shared.clone().let_in(Ask { lease: span, ..ask }, holding));
        Behind::new(&shared.hub.behind, let_in, LetIn::given_up).await.answer
    }

    /// Goes on if its caller goes away.
    fn behind<T: Send + 'static>(
        &self,
        doing: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Answer<'static, T> {
        Box::pin(Behind::new(&self.shared.hub.behind, Box::pin(doing), |_| None))
    }
}

impl Store for LockedStore {
    fn get<'a>(&'a self, at: &'a Address) -> Answer<'a, Option<Entry>> {
        self.shared.redis.get(at)
    }

    fn get_all<'a>(&'a self, at: &'a [Address]) -> Answer<'a, Vec<Option<Entry>>> {
        self.shared.redis.get_all(at)
    }

    fn lead<'a>(&'a self, at: &'a Address, ask: Ask) -> Answer<'a, Lead> {
        Box::pin(self.lead_now(at, ask))
    }

    /// After an error that says nothing of the outcome the lock stays: who asked will ask again, or abandon.
    fn fill<'a>(&'a self, at: &'a Address, right: Right, writes: Vec<Write>) -> Answer<'a, Filled> {
        let Right::Lease(lease) = right else { return self.shared.redis.fill(at, right, writes) };
        let (shared, at) = (self.shared.clone(), at.clone());
        self.behind(async move {
            let filled = shared.redis.fill(&at, right, writes).await;
            if filled.as_ref().map_or_else(StoreError::is_refused, |_| true) {
                shared.let_go(lease).await;
            }
            filled
        })
    }

    fn abandon<'a>(&'a self, at: &'a Address, token: Token, tombstone: Option<Tombstone>) -> Answer<'a, Hold> {
        self.behind(self.shared.clone().abandon(at.clone(), token, tombstone))
    }

    /// Dropped at any await, both, one or neither is extended.
    fn extend<'a>(&'a self, at: &'a Address, lease: Lease, span: Duration) -> Answer<'a, Hold> {
        Box::pin(self.shared.extend(at, lease, span))
    }

    fn invalidate<'a>(&'a self, at: &'a Address) -> Answer<'a, ()> {
        self.shared.redis.invalidate(at)
    }

    fn part(&self, at: &Address) -> u16 {
        self.shared.redis.part(at)
    }

    fn epoch(&self) -> u64 {
        self.shared.redis.epoch()
    }

    fn listen(&self, at: &Address) -> Listener {
        self.shared.redis.listen(at)
    }

    fn track(&self, every: Duration) -> Option<Arc<dyn Track>> {
        self.shared.redis.track(every)
    }
}

impl fmt::Debug for LockedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedStore")
            .field("recipe", &self.shared.recipe.name())
            .field("held", &self.shared.holdings.len())
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}
