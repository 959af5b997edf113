//! Leases that have ended and are kept for their holder, in every store. Not under a lock, because the lock decides
//! which process leads.

use crate::{
    suite::{LONG, SHORT, ask, fill, fresh, lead, lead_when_free, payload, token},
    support::{RedisServer, eventually},
};
use stampede_guard::{
    MemoryStore, RedisStore,
    store::{CacheKey, FillOutcome, Lease, LeaseReply, LeaseRequest, LeaseStatus, Leaves, MARKED_FOR, Store},
};
use std::time::Duration;

macro_rules! cases {
    ($($case:ident)*) => {$(
        mod $case {
            use super::*;

            #[tokio::test]
            async fn in_memory() {
                super::$case(&MemoryStore::default()).await;
            }

            #[tokio::test]
            async fn over_redis() {
                super::$case(&RedisStore::new(RedisServer::shared().client())).await;
            }
        }
    )*};
}

cases! {
    ended_lease_is_marked_and_then_taken
    ended_lease_can_be_filled
    extension_clears_mark_of_ended_lease
    invalidation_drops_ended_lease
    ended_lease_is_released_by_its_holder
    repeated_request_for_ended_lease_is_granted_again
    waiter_of_marked_lease_is_woken_by_fill
    lease_is_not_kept_for_ever
}

/// Acquires a lease that ends soon and is kept for long after that.
async fn lead_briefly(store: &dyn Store, key: &CacheKey) -> Lease {
    let mut request = LeaseRequest::new(token(), SHORT);
    request.kept_for = LONG;
    match store.get_or_lease(key, request).await.expect("an answer") {
        LeaseReply::Granted { lease, .. } => lease,
        other => panic!("not granted: {other:?}"),
    }
}

/// Asks until the lease has ended and is marked. Returns the time until a request takes it.
async fn mark(store: &dyn Store, key: &CacheKey, lease: Lease) -> Duration {
    loop {
        match ask(store, key, LONG, None).await.1 {
            LeaseReply::Wait { remaining, holder, .. } if holder.token == lease.token => match remaining {
                // The first reply after the end: a lease that runs has less time left.
                remaining if remaining > SHORT => return remaining,
                remaining => tokio::time::sleep(remaining).await,
            },
            other => panic!("not marked: {other:?}"),
        }
    }
}

/// Seen to fail if the first request takes the lease, and if the second one does so at once.
async fn ended_lease_is_marked_and_then_taken(store: &dyn Store) {
    let key = fresh("ended");
    let late = lead_briefly(store, &key).await;
    tokio::time::sleep(SHORT).await;
    let marked = std::time::Instant::now();
    let remaining = mark(store, &key, late).await;
    assert!(remaining <= MARKED_FOR, "{remaining:?}");
    let again = ask(store, &key, LONG, None).await.1;
    let is_marked = matches!(again, LeaseReply::Wait { holder, remaining, .. } if holder.token == late.token && remaining <= MARKED_FOR);
    assert!(is_marked || marked.elapsed() > MARKED_FOR, "{again:?}");
    let next = lead_when_free(store, &key, LONG).await;
    assert!(marked.elapsed() >= MARKED_FOR && next.stamp > late.stamp);
    assert_eq!(fill(store, &key, late, "old").await, FillOutcome::Fenced);
    assert_eq!(store.extend(&key, late, LONG).await.expect("an answer"), LeaseStatus::Lost);
    assert_eq!(store.release(&key, late.token, None).await.expect("an answer"), LeaseStatus::Lost);
    assert_eq!(fill(store, &key, next, "new").await, FillOutcome::Stored);
}

/// Seen to fail if a lease is dropped at its end.
async fn ended_lease_can_be_filled(store: &dyn Store) {
    for is_marked in [false, true] {
        let key = fresh("filled at last");
        let lease = lead_briefly(store, &key).await;
        tokio::time::sleep(2 * SHORT).await;
        if is_marked {
            mark(store, &key, lease).await;
        }
        assert_eq!(fill(store, &key, lease, "v").await, FillOutcome::Stored);
        assert_eq!(payload(store, &key).await.as_deref(), Some("v"));
    }
}

/// Seen to fail if an extension leaves the mark: the request after the second end takes the lease.
async fn extension_clears_mark_of_ended_lease(store: &dyn Store) {
    let key = fresh("extended at last");
    let lease = lead_briefly(store, &key).await;
    mark(store, &key, lease).await;
    assert_eq!(store.extend(&key, lease, SHORT).await.expect("an answer"), LeaseStatus::Held);
    tokio::time::sleep(2 * SHORT).await;
    mark(store, &key, lease).await;
    assert_eq!(store.extend(&key, lease, LONG).await.expect("an answer"), LeaseStatus::Held);
    let LeaseReply::Wait { remaining, .. } = ask(store, &key, LONG, None).await.1 else { panic!("no wait") };
    assert!(remaining > LONG / 2, "{remaining:?}");
    assert_eq!(fill(store, &key, lease, "v").await, FillOutcome::Stored);
}

/// Seen to fail if an invalidation leaves a lease that has ended.
async fn invalidation_drops_ended_lease(store: &dyn Store) {
    for is_marked in [false, true] {
        let key = fresh("invalidated after its end");
        let lease = lead_briefly(store, &key).await;
        tokio::time::sleep(2 * SHORT).await;
        if is_marked {
            mark(store, &key, lease).await;
        }
        store.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("an answer");
        assert_eq!(store.extend(&key, lease, LONG).await.expect("an answer"), LeaseStatus::Lost);
        assert_eq!(fill(store, &key, lease, "old").await, FillOutcome::Fenced);
        let next = lead(store, &key, LONG).await;
        assert_eq!(fill(store, &key, next, "new").await, FillOutcome::Stored);
    }
}

async fn ended_lease_is_released_by_its_holder(store: &dyn Store) {
    let key = fresh("released at last");
    for is_marked in [false, true] {
        let lease = lead_briefly(store, &key).await;
        tokio::time::sleep(2 * SHORT).await;
        if is_marked {
            mark(store, &key, lease).await;
        }
        assert_eq!(store.release(&key, lease.token, None).await.expect("an answer"), LeaseStatus::Held);
    }
    lead(store, &key, LONG).await;
}

async fn repeated_request_for_ended_lease_is_granted_again(store: &dyn Store) {
    let key = fresh("repeated at last");
    let lease = lead_briefly(store, &key).await;
    mark(store, &key, lease).await;
    let again = store.get_or_lease(&key, LeaseRequest::new(lease.token, LONG)).await.expect("an answer");
    assert!(matches!(again, LeaseReply::Granted { lease: same, .. } if same == lease), "{again:?}");
}

async fn waiter_of_marked_lease_is_woken_by_fill(store: &dyn Store) {
    let key = fresh("woken at last");
    let mut waiter = store.listen(&key);
    let token = waiter.token();
    eventually("wake-ups arrive", async || {
        let lease = lead_briefly(store, &key).await;
        mark(store, &key, lease).await;
        let wait = store.get_or_lease(&key, LeaseRequest::new(token, LONG)).await.expect("an answer");
        let is_registered = matches!(wait, LeaseReply::Wait { registered: true, .. });
        if is_registered {
            assert_eq!(fill(store, &key, lease, "v").await, FillOutcome::Stored);
        } else {
            store.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("an answer"); // the mark may have been too old
        }
        is_registered
    })
    .await;
    tokio::time::timeout(LONG, waiter.notified()).await.expect("a wake-up");
    assert_eq!(payload(store, &key).await.as_deref(), Some("v"));
}

async fn lease_is_not_kept_for_ever(store: &dyn Store) {
    let key = fresh("not kept");
    let mut request = LeaseRequest::new(token(), SHORT);
    request.kept_for = SHORT;
    let granted = store.get_or_lease(&key, request).await.expect("an answer");
    let LeaseReply::Granted { lease, .. } = granted else { panic!("{granted:?}") };
    assert_eq!(store.extend(&key, lease, 2 * SHORT).await.expect("an answer"), LeaseStatus::Held);
    tokio::time::sleep(3 * SHORT + Duration::from_millis(20)).await;
    assert_eq!(fill(store, &key, lease, "late").await, FillOutcome::Fenced);
    assert_eq!(store.extend(&key, lease, LONG).await.expect("an answer"), LeaseStatus::Lost);
    lead(store, &key, LONG).await;
}
