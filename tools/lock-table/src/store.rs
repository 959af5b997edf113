//! A store whose leader is chosen by a lock recipe, and whose fills are fenced by the lease.
//!
//! Origin: `cache_lookup` of "Redis as a mutex service" (seed 004): read, lock, read again, compute, store, unlock. In
//! the post every holder of the lock stores, so a late holder, or a recipe that admits two holders, stores an old
//! value. Here a lease in addition to the lock records the last admitted holder, and only its fill is stored.

mod admission;
mod completed;
mod held_locks;
mod lead;

use crate::guarantees::LabRecipe;
use admission::{Admission, MessageForwarder, StoreState};
use completed::{completed, release_if_acquired};
use held_locks::{HeldLockEntry, HeldLocks};
use lead::{Arbiter, get_or_lease};
use stampede_guard::{
    RedisStore,
    lock::{
        IntoEndpoint, LeaseStatus,
        recipe::{Attempt, DetachOnDrop, LockClient},
    },
    store::{
        Answer, CacheKey, Entry, FailureMarker, FillCondition, FillOutcome, InvalidationFeed, Lease, LeaseReply,
        LeaseRequest, Leaves, Listener, Store, StoreError, Timestamp, Token, TrackedReader, Write,
    },
};
use std::{
    error, fmt,
    future::Future,
    sync::{Arc, Weak},
    time::Duration,
};

/// A [`Store`] in Redis, like [`RedisStore`], whose fetches run under a lock of a chosen recipe.
///
/// Prefer [`RedisStore`]: its lease takes one script and one round trip. Use this store to evaluate a recipe, or if the
/// server allows only certain recipes.
///
/// ```no_run
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use lock_table::LockedStore;
/// use stampede_guard::{StampedeGuard, lock::SetPx, redis};
///
/// let store = LockedStore::new(redis::Client::open("redis://127.0.0.1/")?, SetPx)?;
/// let guard = StampedeGuard::new(store);
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// Stored entries are correct with every recipe. A fill is stored only if no other holder was admitted, and no
/// invalidation arrived, after its fetch began. The number of duplicate fetches depends on the recipe. If the recipe
/// admits two holders, or the lock is taken over unnoticed, the second holder fetches too, and its result is stored.
///
/// # Cost
///
/// A miss takes five sequential commands: read, lock, read again, store, unlock. [`RedisStore`] takes three. The
/// [`store_timeout`](stampede_guard::StampedeGuard::store_timeout) must cover three commands. Locks use a connection of their
/// own.
///
/// Waiters are notified by message, as with [`RedisStore`], even if the recipe itself spins. But the lock is held for a
/// short time before the lease is granted and after the lease ends. A caller that arrives then polls: every 25 to 50 ms
/// at first.
///
/// # Lifetime of a lock
///
/// The lock has the ttl of the [lease](stampede_guard::StampedeGuard::lease_ttl) and is extended with it. A recipe that is not
/// [extendable](crate::Guarantees::extendable) locks for [`hold`](Self::hold). If its holder crashes, no process
/// can lead the key for that time. Callers wait for its end, or until their wait timeout.
///
/// An invalidation ends the lease of the holder, but not its lock, because only the holder can release the lock. The
/// holder releases it as soon as it learns of the invalidation: by message, or at the next extension of its lease,
/// within a third of the lease.
///
/// # Names
///
/// Entries and leases have the same names as in a [`RedisStore`]. The locks share their hash tag:
/// `{sg:ruser:42}:set-px.` followed by a hash. They never collide with the names of a [`Lock`](stampede_guard::Lock).
pub struct LockedStore {
    shared: Arc<StoreState>,
    hold: Duration,
}

impl LockedStore {
    /// Creates a store over `redis` with the recipe.
    ///
    /// It uses one connection for entries, one for locks, and one for messages. The connection for messages requires
    /// that `redis` is a client, or that [`RedisEndpoint::subscribe_via`](stampede_guard::lock::RedisEndpoint::subscribe_via)
    /// names one; otherwise waiters poll. All processes that share a namespace must use the same recipe.
    ///
    /// # Errors
    ///
    /// The lock of a crashed holder does not become free
    /// ([`crash_frees`](crate::Guarantees::crash_frees)), so the key could never be fetched again.
    pub fn new(redis: impl IntoEndpoint, recipe: impl LabRecipe) -> Result<Self, RecipeRefused> {
        if !recipe.guarantees().crash_frees {
            return Err(RecipeRefused(recipe.name()));
        }
        let server = redis.into_endpoint();
        let shared = Arc::new_cyclic(|shared: &Weak<StoreState>| StoreState {
            client: Arc::new(LockClient::new(&server, &[lead::TEXT])),
            redis: RedisStore::with_message_handler(server, |wakes| {
                Arc::new(MessageForwarder { wakes, shared: shared.clone() })
            }),
            recipe: Arc::new(recipe),
            held_locks: HeldLocks::default(),
        });
        Ok(Self { shared, hold: Duration::from_secs(60) })
    }

    /// Sets the ttl of the locks of a recipe that cannot extend them. Other recipes ignore it.
    ///
    /// It should be at least the longest fetch, because another process starts a fetch once the lock has expired.
    /// Default: 60 s, as [`fetch_timeout`](stampede_guard::StampedeGuard::fetch_timeout).
    ///
    /// # Panics
    ///
    /// Panics if `span` is less than one millisecond, the unit of Redis.
    #[must_use]
    #[track_caller]
    pub fn hold(self, span: Duration) -> Self {
        assert!(span >= Duration::from_millis(1), "hold must be at least one millisecond");
        Self { hold: span, ..self }
    }

    /// Acquires the lock and then the lease.
    ///
    /// If the future is dropped during the lock request, a granted lock is released in the background. If it is dropped
    /// during the lease request, lock and lease are released in the background.
    async fn get_or_lease_now(&self, key: &CacheKey, request: LeaseRequest) -> Result<LeaseReply, StoreError> {
        let shared = &self.shared;
        let span = if shared.recipe.guarantees().extendable { request.lease } else { self.hold };
        let until = Timestamp::now().after(span);
        let held = match shared.held_locks.of(request.token) {
            Some(held) => held, // a repeated request of the holder
            None => {
                let attempt = shared.recipe.attempt(shared.acquisition(key, request.token, span));
                match completed(&shared.client, attempt, release_if_acquired).await {
                    Ok(Attempt::Acquired { held, .. }) => held,
                    Ok(Attempt::Busy(_)) => return get_or_lease(&shared.redis, Arbiter::LockBusy, key, request).await,
                    // The caller may not have read the entry before, and an entry that exists needs no lock.
                    Err(error) => {
                        return match shared.redis.get(key).await {
                            Ok(Some(entry)) if Some(entry.meta().id) != request.seen => Ok(LeaseReply::Hit(entry)),
                            _ => Err(error),
                        };
                    }
                }
            }
        };
        let entry = HeldLockEntry { key: key.clone(), hash: key.hash(), held, span, until };
        let admit = Box::pin(shared.clone().admit(lasting(request, span), entry));
        completed(&shared.client, admit, Admission::on_abandoned).await.answer
    }

    /// Wraps an operation so that it continues in the background if its caller is cancelled.
    fn in_background<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Answer<'static, T> {
        Box::pin(DetachOnDrop::new(&self.shared.client.background, Box::pin(operation)))
    }
}

impl Store for LockedStore {
    fn get<'a>(&'a self, key: &'a CacheKey) -> Answer<'a, Option<Entry>> {
        self.shared.redis.get(key)
    }

    fn get_all<'a>(&'a self, key: &'a [CacheKey]) -> Answer<'a, Vec<Option<Entry>>> {
        self.shared.redis.get_all(key)
    }

    fn get_or_lease<'a>(&'a self, key: &'a CacheKey, request: LeaseRequest) -> Answer<'a, LeaseReply> {
        Box::pin(self.get_or_lease_now(key, request))
    }

    /// Stores the entries and releases the lock. After an error with unknown outcome the lock stays held, because the
    /// leader will repeat the fill or release its lease.
    fn fill<'a>(&'a self, key: &'a CacheKey, condition: FillCondition, writes: Vec<Write>) -> Answer<'a, FillOutcome> {
        let FillCondition::Lease(lease) = condition else { return self.shared.redis.fill(key, condition, writes) };
        let (shared, key) = (self.shared.clone(), key.clone());
        self.in_background(async move {
            let filled = shared.redis.fill(&key, condition, writes).await;
            if filled.as_ref().map_or_else(StoreError::is_refused, |_| true) {
                shared.release_lock(lease).await;
            }
            filled
        })
    }

    fn release<'a>(
        &'a self,
        key: &'a CacheKey,
        token: Token,
        failure_marker: Option<FailureMarker>,
    ) -> Answer<'a, LeaseStatus> {
        self.in_background(self.shared.clone().release(key.clone(), token, failure_marker))
    }

    /// Extends lock and lease. If the future is dropped, both, one or neither of them is extended.
    fn extend<'a>(&'a self, key: &'a CacheKey, lease: Lease, span: Duration) -> Answer<'a, LeaseStatus> {
        Box::pin(self.shared.extend(key, lease, span))
    }

    fn invalidate<'a>(&'a self, keys: &'a [CacheKey], leaves: Leaves) -> Answer<'a, Option<Lease>> {
        self.shared.redis.invalidate(keys, leaves)
    }

    fn failure_domain(&self, key: &CacheKey) -> u16 {
        self.shared.redis.failure_domain(key)
    }

    fn connection(&self, key: &CacheKey) -> u64 {
        self.shared.redis.connection(key)
    }

    fn corrupt_entries(&self) -> u64 {
        self.shared.redis.corrupt_entries()
    }

    fn listen(&self, key: &CacheKey) -> Listener {
        self.shared.redis.listen(key)
    }

    fn is_subscribed(&self) -> Option<bool> {
        self.shared.redis.is_subscribed()
    }

    fn track(&self, feed: Arc<InvalidationFeed>, every: Duration) -> Option<Arc<dyn TrackedReader>> {
        self.shared.redis.track(feed, every)
    }
}

/// Returns the request of a lease for `span`. The lease is not kept after its end, because the lock has ended too.
fn lasting(mut request: LeaseRequest, span: Duration) -> LeaseRequest {
    (request.lease, request.kept_for) = (span, Duration::ZERO);
    request
}

/// The error of [`LockedStore::new`]: the recipe, named here, does not free the lock of a crashed holder.
#[derive(Clone, Debug)]
pub struct RecipeRefused(&'static str);

impl fmt::Display for RecipeRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} does not free the lock of a crashed holder: use a recipe with `crash_frees`, for example \
             SetMembership::with_expiry()",
            self.0
        )
    }
}

impl error::Error for RecipeRefused {}

impl fmt::Debug for LockedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockedStore")
            .field("recipe", &self.shared.recipe.name())
            .field("held", &self.shared.held_locks.len())
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}
