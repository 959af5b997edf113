//! What a lock cannot prevent, and the fence does: no recipe can cause a stale set.

use super::{At, RECIPES, SECOND, locked};
use crate::support::{MS, RedisServer, eventually};
use bytes::Bytes;
use futures_util::future::join_all;
use redis::AsyncTypedCommands;
use stampede_guard::store::{
    Address, Ask, Entry, Filled, Hold, Inbox, Kind, Lead, Lease, Lifetimes, LockedStore, Meta, Right, Store, Timestamp,
    Token, Tombstone, Write,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

recipes!(cases {
    a_holder_whose_lock_was_taken_over_cannot_fill
    what_is_stored_is_never_older_than_what_was
    nobody_is_let_in_between_a_failure_and_its_tombstone
});

fn address(recipe: &str, key: &str) -> Address {
    Address::new(format!("fence-{recipe}"), 0, key)
}

/// Connected: what is late here is to be late on purpose.
async fn processes<const N: usize>(recipe: &str, span: Duration) -> [LockedStore; N] {
    let at = At::shared();
    let stores = [(); N].map(|()| locked(recipe, &at).hold(span));
    for store in &stores {
        eventually("it is connected", async || {
            let (at, token) = (address(recipe, &format!("warm-up of {store:p}")), Token::unique(Inbox::unique()));
            let led = store.lead(&at, Ask { token, lease: span, seen: None }).await;
            led.is_ok() && store.abandon(&at, token, None).await.is_ok()
        })
        .await;
    }
    stores
}

async fn lead(store: &LockedStore, at: &Address, span: Duration, seen: Option<Token>) -> Lead {
    let token = Token::unique(Inbox::unique());
    store.lead(at, Ask { token, lease: span, seen }).await.expect("an answer")
}

/// However long it takes: what is there already does not count.
async fn led(store: &LockedStore, at: &Address, span: Duration) -> Lease {
    let mut seen = None;
    loop {
        match lead(store, at, span, seen).await {
            Lead::Granted { lease, .. } => return lease,
            Lead::Hit(entry) => seen = Some(entry.meta().id),
            Lead::Wait { .. } | Lead::Failed { .. } => tokio::time::sleep(MS).await,
        }
    }
}

async fn fill(store: &LockedStore, at: &Address, lease: Lease, payload: impl Into<Bytes>) -> Filled {
    let lifetimes = Lifetimes { fresh_for: 30 * SECOND, ..Lifetimes::default() };
    let (kind, id, answered) = (Kind::Value, lease.token, Timestamp::now());
    let meta = Meta { kind, id, answered, cost: MS, lifetimes, codec: 0 };
    let write = Write { at: at.clone(), entry: Entry::new(meta, payload.into()) };
    store.fill(at, Right::Lease(lease), vec![write]).await.expect("an answer")
}

async fn stored(store: &LockedStore, at: &Address) -> Option<Bytes> {
    Some(store.get(at).await.expect("an answer")?.payload().bytes().clone())
}

/// As after a pause that is longer than its lock lives: nobody extends it. A recipe whose release takes the lock of the next
/// one lets a third one through, which is worth a computation and no more. Seen to fail with the fence left out of
/// `fill.lua`.
async fn a_holder_whose_lock_was_taken_over_cannot_fill(recipe: &str) {
    let span = 100 * MS;
    let ([a], [b]) = (processes(recipe, span).await, processes(recipe, 30 * SECOND).await);
    let at = address(recipe, "taken over");
    for late in ["fills", "fails", "extends", "fills at last"] {
        let old = led(&a, &at, span).await;
        let new = led(&b, &at, 30 * SECOND).await;
        assert!(new.stamp > old.stamp, "fencing tokens grow");
        match late {
            "fills" => assert_eq!(fill(&a, &at, old, "old").await, Filled::Fenced),
            "fails" => {
                let tombstone = Tombstone { first: SECOND, most: SECOND, code: 500 };
                assert_eq!(a.abandon(&at, old.token, Some(tombstone)).await.expect("an answer"), Hold::Lost);
            }
            "extends" => assert_eq!(a.extend(&at, old, span).await.expect("an answer"), Hold::Lost),
            _ => {}
        }
        assert_eq!(fill(&b, &at, new, "new").await, Filled::Stored, "{late}");
        assert_eq!(fill(&a, &at, old, "old").await, Filled::Fenced, "{late}");
        assert_eq!(stored(&b, &at).await.as_deref(), Some(&b"new"[..]), "{late}");
        b.invalidate(&at).await.expect("acknowledged");
    }
}

/// A version counter as origin, and holders that are away for longer than their locks live. What is read after a fill or an
/// invalidation was acknowledged is no older than that. Seen to fail with the fence left out of `fill.lua`.
async fn what_is_stored_is_never_older_than_what_was(recipe: &str) {
    const SPAN: Duration = Duration::from_millis(10);
    let (stores, at) = (Arc::new(processes::<3>(recipe, SPAN).await), address(recipe, "versions"));
    let (version, floor) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let fenced = Arc::new(AtomicUsize::new(0));
    crate::support::herd(6, |i| {
        let (stores, at, mut dice) = (stores.clone(), at.clone(), fastrand::Rng::with_seed(i as u64));
        let (version, floor, fenced) = (version.clone(), floor.clone(), fenced.clone());
        async move {
            let store = &stores[i % 3];
            for _ in 0..25 {
                let least = floor.load(SeqCst);
                if let Some(read) = stored(store, &at).await {
                    let read: u64 = std::str::from_utf8(&read).expect("digits").parse().expect("a version");
                    assert!(read >= least, "{read} is stored, after {least} was");
                }
                if dice.u8(0..8) == 0 {
                    let newer = version.fetch_add(1, SeqCst) + 1;
                    store.invalidate(&at).await.expect("acknowledged");
                    floor.fetch_max(newer, SeqCst);
                }
                let lease = led(store, &at, SPAN).await;
                let computed = version.fetch_add(1, SeqCst) + 1;
                tokio::time::sleep(Duration::from_millis(dice.u64(0..40))).await;
                match fill(store, &at, lease, computed.to_string()).await {
                    Filled::Stored => _ = floor.fetch_max(computed, SeqCst),
                    Filled::Fenced => _ = fenced.fetch_add(1, SeqCst),
                }
            }
        }
    })
    .await;
    assert!(fenced.load(SeqCst) > 0, "nobody was late");
    eventually("nothing is left", async || stores.iter().all(|store| format!("{store:?}").contains("held: 0"))).await;
}

/// Else an error is a stampede. Seen to fail with the lock released before the tombstone is there.
async fn nobody_is_let_in_between_a_failure_and_its_tombstone(recipe: &str) {
    let ([a, b], at) = (processes(recipe, 30 * SECOND).await, address(recipe, "failed"));
    for round in 0..20 {
        let lease = led(&a, &at, 30 * SECOND).await;
        let tombstone = Tombstone { first: 30 * SECOND, most: 30 * SECOND, code: 500 };
        let told = async {
            loop {
                match lead(&b, &at, 30 * SECOND, None).await {
                    Lead::Wait { .. } => {}
                    Lead::Failed { code, .. } => break assert_eq!(code, 500),
                    other => panic!("in round {round}: {other:?}"),
                }
            }
        };
        let (held, ()) = tokio::join!(a.abandon(&at, lease.token, Some(tombstone)), told);
        assert_eq!(held.expect("an answer"), Hold::Held);
        b.invalidate(&at).await.expect("acknowledged"); // the tombstone as well
    }
}

/// What is lost on one side is given back on the other: those who wait are woken, and do not wait for a lease that nobody
/// will use. Seen to fail with the lease left to expire.
#[tokio::test]
async fn a_lock_that_is_lost_ends_the_lease() {
    let ([a, b], at) = (processes("set_px", 1000 * SECOND).await, address("set_px", "deleted"));
    let lease = led(&a, &at, 1000 * SECOND).await;
    let mut waiter = b.listen(&at);
    let token = waiter.token();
    eventually("it will be woken", async || {
        let wait = b.lead(&at, Ask { token, lease: 1000 * SECOND, seen: None }).await.expect("an answer");
        matches!(wait, Lead::Wait { registered: true, .. })
    })
    .await;
    let mut redis = RedisServer::shared().connection().await;
    let lock = redis.keys("{fence-set_px:rdeleted}:set-px.*").await.expect("an answer");
    assert_eq!(redis.del(lock).await.expect("an answer"), 1, "the name that the docs give");
    assert_eq!(a.extend(&at, lease, 1000 * SECOND).await.expect("an answer"), Hold::Lost);
    tokio::time::timeout(30 * SECOND, waiter.woken()).await.expect("woken");
    led(&b, &at, 1000 * SECOND).await;
    assert_eq!(fill(&a, &at, lease, "late").await, Filled::Fenced);
}

/// Of all recipes at once, as it takes its time: twice the span that was asked for first.
#[tokio::test]
async fn what_is_extended_is_held_and_what_cannot_be_is_held_from_the_beginning() {
    let span = 2 * SECOND;
    let each = RECIPES.iter().map(|recipe| async move {
        let ([a, b], at) = (processes(recipe, 1000 * SECOND).await, address(recipe, "extended"));
        let lease = led(&a, &at, span).await;
        assert_eq!(a.extend(&at, lease, 1000 * SECOND).await.expect("an answer"), Hold::Held, "{recipe}");
        tokio::time::sleep(2 * span).await;
        let waits = lead(&b, &at, span, None).await;
        assert!(matches!(waits, Lead::Wait { holder, .. } if holder == lease.token), "{recipe}: {waits:?}");
        assert_eq!(fill(&a, &at, lease, "v").await, Filled::Stored, "{recipe}");
    });
    join_all(each).await;
}
