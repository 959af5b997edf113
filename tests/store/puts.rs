//! The first script of a put. Not in the suite: a lab that takes a lock for each lease does not end that lock.

use crate::suite::{LONG, ask, fill, fresh, is_led, lead, payload, token};
use crate::support::RedisServer;
use stampede_guard::{
    MemoryStore, RedisStore,
    store::{CacheKey, FillOutcome, Lease, LeaseReply, LeaseRequest, Leaves, Store, Token},
};

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
    a_put_drops_entry_and_lease_and_is_granted_the_next
    a_put_that_is_sent_twice_has_its_last_lease
}

/// Sends the first script of a put.
async fn begin_put(store: &dyn Store, key: &CacheKey, token: Token) -> Lease {
    let leaves = Leaves::Lease(LeaseRequest::new(token, LONG));
    let lease = store.invalidate(std::slice::from_ref(key), leaves).await.expect("an answer");
    lease.expect("nobody else asks for it")
}

/// Seen to fail over Redis if the first script keeps the entries.
async fn a_put_drops_entry_and_lease_and_is_granted_the_next(store: &dyn Store) {
    let key = fresh("put");
    let first = lead(store, &key, LONG).await;
    fill(store, &key, first, "old").await;
    let (_, refresh) = ask(store, &key, LONG, Some(first.token)).await;
    let LeaseReply::Granted { lease: refresh, .. } = refresh else { panic!("{refresh:?}") };
    let lease = begin_put(store, &key, token()).await;
    assert!(store.get(&key).await.expect("an answer").is_none());
    assert!(is_led(store, &key).await);
    assert_eq!(fill(store, &key, refresh, "older still").await, FillOutcome::Fenced);
    assert_eq!(fill(store, &key, lease, "put").await, FillOutcome::Stored);
    assert_eq!(payload(store, &key).await.as_deref(), Some("put"));
    let (first, second) = (begin_put(store, &key, token()).await, begin_put(store, &key, token()).await);
    assert_eq!(fill(store, &key, second, "second").await, FillOutcome::Stored);
    assert_eq!(fill(store, &key, first, "first").await, FillOutcome::Fenced);
    let put = begin_put(store, &key, token()).await;
    store.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("an answer");
    assert_eq!(fill(store, &key, put, "invalidated").await, FillOutcome::Fenced);
    assert_eq!(payload(store, &key).await, None);
}

/// Seen to fail if a fill is checked by token alone.
async fn a_put_that_is_sent_twice_has_its_last_lease(store: &dyn Store) {
    let (key, token) = (fresh("put twice"), token());
    let [first, second] = [begin_put(store, &key, token).await, begin_put(store, &key, token).await];
    assert_ne!(first.stamp, second.stamp);
    assert_eq!(fill(store, &key, first, "of the first copy").await, FillOutcome::Fenced);
    assert_eq!(fill(store, &key, second, "put").await, FillOutcome::Stored);
}
