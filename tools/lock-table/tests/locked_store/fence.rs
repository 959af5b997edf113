//! The fence prevents what a lock cannot: no recipe can overwrite a newer value with an older one.

use crate::{
    At, RECIPES, SECOND, locked,
    support::{MS, RedisServer, eventually},
};
use bytes::Bytes;
use futures_util::future::join_all;
use lock_table::LockedStore;
use redis::AsyncTypedCommands;
use stampede_guard::store::{
    CacheKey, Entry, FailureMarker, FillCondition, FillOutcome, Inbox, Kind, Lease, LeaseReply, LeaseRequest,
    LeaseStatus, Leaves, Lifetimes, Meta, Store, Timestamp, Token, Write,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

recipes!(cases {
    holder_cannot_fill_after_lock_was_taken_over
    stored_value_is_never_replaced_by_older_value
    failure_marker_is_set_before_lock_is_released
});

fn cache_key(recipe: &str, key: &str) -> CacheKey {
    CacheKey::new(format!("fence-{recipe}"), 0, key)
}

/// Returns connected stores that stand for processes, so that only intended delays make a holder late.
async fn processes<const N: usize>(recipe: &str, span: Duration) -> [LockedStore; N] {
    let key = At::shared();
    let stores = [(); N].map(|()| locked(recipe, &key).hold(span));
    for store in &stores {
        eventually("the store is connected", async || {
            let (key, token) = (cache_key(recipe, &format!("warm-up of {store:p}")), Token::unique(Inbox::unique()));
            let led = store.get_or_lease(&key, LeaseRequest::new(token, span)).await;
            led.is_ok() && store.release(&key, token, None).await.is_ok()
        })
        .await;
    }
    stores
}

async fn lead(store: &LockedStore, key: &CacheKey, span: Duration, seen: Option<Token>) -> LeaseReply {
    let token = Token::unique(Inbox::unique());
    let mut request = LeaseRequest::new(token, span);
    request.seen = seen;
    store.get_or_lease(key, request).await.expect("an answer")
}

/// Retries until the lease is granted, and ignores entries that are already stored.
async fn led(store: &LockedStore, key: &CacheKey, span: Duration) -> Lease {
    let mut seen = None;
    loop {
        match lead(store, key, span, seen).await {
            LeaseReply::Granted { lease, .. } => return lease,
            LeaseReply::Hit(entry) => seen = Some(entry.meta().id),
            _ => tokio::time::sleep(MS).await,
        }
    }
}

async fn fill(store: &LockedStore, key: &CacheKey, lease: Lease, payload: impl Into<Bytes>) -> FillOutcome {
    let lifetimes = Lifetimes::fresh_for(30 * SECOND);
    let (kind, id, response_time) = (Kind::Value, lease.token, Timestamp::now());
    let mut meta = Meta::new(kind, id, response_time);
    (meta.cost, meta.lifetimes) = (MS, lifetimes);
    let write = Write::new(key.clone(), Entry::new(meta, payload.into()));
    store.fill(key, FillCondition::Lease(lease), vec![write]).await.expect("an answer")
}

async fn stored(store: &LockedStore, key: &CacheKey) -> Option<Bytes> {
    Some(store.get(key).await.expect("an answer")?.payload().bytes().clone())
}

/// The first holder pauses beyond the TTL of its lock, because nothing extends it. A recipe that is not owner-safe may
/// let a third holder in, which costs one more fetch and nothing else.
///
/// Seen to fail without the fence in `fill.lua`.
async fn holder_cannot_fill_after_lock_was_taken_over(recipe: &str) {
    let span = 100 * MS;
    let ([a], [b]) = (processes(recipe, span).await, processes(recipe, 30 * SECOND).await);
    let key = cache_key(recipe, "taken over");
    for late in ["fills", "fails", "extends", "fills at last"] {
        let old = led(&a, &key, span).await;
        let new = led(&b, &key, 30 * SECOND).await;
        assert!(new.stamp > old.stamp, "fencing tokens grow");
        match late {
            "fills" => assert_eq!(fill(&a, &key, old, "old").await, FillOutcome::Fenced),
            "fails" => {
                let failure_marker =
                    FailureMarker { blocks_for: SECOND, remembered_for: SECOND, report: Bytes::from_static(b"500") };
                assert_eq!(
                    a.release(&key, old.token, Some(failure_marker)).await.expect("an answer"),
                    LeaseStatus::Lost
                );
            }
            "extends" => assert_eq!(a.extend(&key, old, span).await.expect("an answer"), LeaseStatus::Lost),
            _ => {}
        }
        assert_eq!(fill(&b, &key, new, "new").await, FillOutcome::Stored, "{late}");
        assert_eq!(fill(&a, &key, old, "old").await, FillOutcome::Fenced, "{late}");
        assert_eq!(stored(&b, &key).await.as_deref(), Some(&b"new"[..]), "{late}");
        b.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("acknowledged");
    }
}

/// The origin is a version counter, and holders pause beyond the TTL of their locks. A read that starts after an
/// acknowledged fill or invalidation returns no older version.
///
/// Seen to fail without the fence in `fill.lua`.
async fn stored_value_is_never_replaced_by_older_value(recipe: &str) {
    const SPAN: Duration = Duration::from_millis(10);
    let (stores, key) = (Arc::new(processes::<3>(recipe, SPAN).await), cache_key(recipe, "versions"));
    let (version, floor) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let fenced = Arc::new(AtomicUsize::new(0));
    crate::support::herd(6, |i| {
        let (stores, key, mut dice) = (stores.clone(), key.clone(), fastrand::Rng::with_seed(i as u64));
        let (version, floor, fenced) = (version.clone(), floor.clone(), fenced.clone());
        async move {
            let store = &stores[i % 3];
            for _ in 0..25 {
                let least = floor.load(SeqCst);
                if let Some(read) = stored(store, &key).await {
                    let read: u64 = std::str::from_utf8(&read).expect("digits").parse().expect("a version");
                    assert!(read >= least, "version {read} is stored although {least} was acknowledged");
                }
                if dice.u8(0..8) == 0 {
                    let newer = version.fetch_add(1, SeqCst) + 1;
                    store.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("acknowledged");
                    floor.fetch_max(newer, SeqCst);
                }
                let lease = led(store, &key, SPAN).await;
                let computed = version.fetch_add(1, SeqCst) + 1;
                tokio::time::sleep(Duration::from_millis(dice.u64(0..40))).await;
                match fill(store, &key, lease, computed.to_string()).await {
                    FillOutcome::Stored => _ = floor.fetch_max(computed, SeqCst),
                    FillOutcome::Fenced => _ = fenced.fetch_add(1, SeqCst),
                }
            }
        }
    })
    .await;
    assert!(fenced.load(SeqCst) > 0, "no fill was late");
    eventually("no store holds a lock", async || stores.iter().all(|store| format!("{store:?}").contains("held: 0")))
        .await;
}

/// Otherwise each failure would let the next waiter fetch at once.
///
/// Seen to fail if the lock is released before the failure marker is set.
async fn failure_marker_is_set_before_lock_is_released(recipe: &str) {
    let ([a, b], key) = (processes(recipe, 30 * SECOND).await, cache_key(recipe, "failed"));
    for round in 0..20 {
        let lease = led(&a, &key, 30 * SECOND).await;
        let failure_marker =
            FailureMarker { blocks_for: 30 * SECOND, remembered_for: 30 * SECOND, report: Bytes::from_static(b"500") };
        let notified = async {
            loop {
                match lead(&b, &key, 30 * SECOND, None).await {
                    LeaseReply::Wait { .. } => {}
                    LeaseReply::Failed { report, .. } => break assert_eq!(report, "500"),
                    other => panic!("in round {round}: {other:?}"),
                }
            }
        };
        let (held, ()) = tokio::join!(a.release(&key, lease.token, Some(failure_marker)), notified);
        assert_eq!(held.expect("an answer"), LeaseStatus::Held);
        b.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("acknowledged"); // removes the failure marker too
    }
}

/// A lost lock also releases its lease and wakes the waiters, so that they do not wait for a lease that no leader will
/// use.
///
/// Seen to fail if the lease is left to expire.
#[tokio::test]
async fn lost_lock_ends_lease_and_wakes_waiters() {
    let ([a, b], key) = (processes("set_px", 1000 * SECOND).await, cache_key("set_px", "deleted"));
    let lease = led(&a, &key, 1000 * SECOND).await;
    let mut waiter = b.listen(&key);
    let token = waiter.token();
    eventually("the waiter is registered", async || {
        let wait = b.get_or_lease(&key, LeaseRequest::new(token, 1000 * SECOND)).await.expect("an answer");
        matches!(wait, LeaseReply::Wait { registered: true, .. })
    })
    .await;
    let mut redis = RedisServer::shared().connection().await;
    let lock = redis.keys("{fence-set_px:rdeleted}:set-px.*").await.expect("an answer");
    assert_eq!(redis.del(lock).await.expect("an answer"), 1, "the lock has the documented name");
    assert_eq!(a.extend(&key, lease, 1000 * SECOND).await.expect("an answer"), LeaseStatus::Lost);
    tokio::time::timeout(30 * SECOND, waiter.notified()).await.expect("a wake-up");
    led(&b, &key, 1000 * SECOND).await;
    assert_eq!(fill(&a, &key, lease, "late").await, FillOutcome::Fenced);
}

/// Recipes that cannot extend hold the lock for the long span from the start. All recipes run at once because each
/// takes twice the requested span.
#[tokio::test]
async fn lease_outlives_requested_span_with_every_recipe() {
    let span = 2 * SECOND;
    let each = RECIPES.iter().map(|recipe| async move {
        let ([a, b], key) = (processes(recipe, 1000 * SECOND).await, cache_key(recipe, "extended"));
        let lease = led(&a, &key, span).await;
        assert_eq!(a.extend(&key, lease, 1000 * SECOND).await.expect("an answer"), LeaseStatus::Held, "{recipe}");
        tokio::time::sleep(2 * span).await;
        let waits = lead(&b, &key, span, None).await;
        assert!(matches!(waits, LeaseReply::Wait { holder, .. } if holder.token == lease.token), "{recipe}: {waits:?}");
        assert_eq!(fill(&a, &key, lease, "v").await, FillOutcome::Stored, "{recipe}");
    });
    join_all(each).await;
}
