//! `store_suite!`: the same cases for every implementation.

use crate::support::eventually;
use bytes::Bytes;
use stampede_guard::store::{
    Address, Ask, Entry, Filled, Hold, Inbox, Kind, Lead, Lease, Lifetimes, Meta, Right, Store, Timestamp, Token,
    Tombstone, Write,
};
use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

/// Instantiates every case below for one store.
#[macro_export]
macro_rules! store_suite {
    ($name:ident, $store:expr) => {
        $crate::store_suite!($name, $store;
            a_fill_is_read
            the_second_waits_for_the_first
            a_repeated_question_is_granted_again
            only_token_and_stamp_fill
            a_repeated_fill_says_stored
            a_late_fill_is_fenced
            an_extended_lease_lives_on
            an_abandoned_lease_is_free
            a_tombstone_holds_off_and_doubles
            success_forgets_failures
            an_invalidation_drops_entry_and_lease
            a_late_duplicate_of_a_question_cannot_fill
            only_an_unseen_entry_is_a_hit
            a_seen_entry_that_is_gone_is_reported
            a_marker_is_promoted_by_its_id_alone
            a_promotion_ends_the_lease
            whoever_waits_is_woken
            schemas_share_leases_but_not_entries
            several_writes_land_together
            any_bytes_are_a_key
            a_dead_holder_is_a_ghost
            an_expired_entry_is_gone
        );
    };
    ($name:ident, $store:expr; $($case:ident)*) => {
        mod $name {
            use super::*;

            $(
                #[tokio::test]
                async fn $case() {
                    $crate::suite::$case(&$store).await;
                }
            )*
        }
    };
}

pub(crate) const LONG: Duration = Duration::from_secs(30);
pub(crate) const SHORT: Duration = Duration::from_millis(60);

/// An address of its own for each call.
pub(crate) fn fresh(name: &str) -> Address {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    Address::new("suite", 7, format!("{name}/{}", NEXT.fetch_add(1, Relaxed)))
}

pub(crate) fn token() -> Token {
    Token::unique(Inbox::unique())
}

pub(crate) fn entry(id: Token, kind: Kind, payload: &'static str) -> Entry {
    let lifetimes = Lifetimes { fresh_for: LONG, ..Lifetimes::default() };
    let meta = Meta { kind, id, answered: Timestamp::now(), cost: Duration::from_millis(5), lifetimes, codec: 9 };
    Entry::new(meta, Bytes::from_static(payload.as_bytes()))
}

pub(crate) async fn ask(store: &dyn Store, at: &Address, lease: Duration, seen: Option<Token>) -> (Token, Lead) {
    let token = token();
    (token, store.lead(at, Ask { token, lease, seen }).await.expect("an answer"))
}

pub(crate) async fn lead(store: &dyn Store, at: &Address, span: Duration) -> Lease {
    match ask(store, at, span, None).await.1 {
        Lead::Granted { lease, .. } => lease,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn fill(store: &dyn Store, at: &Address, lease: Lease, payload: &'static str) -> Filled {
    let entry = entry(lease.token, Kind::Value, payload);
    fill_by(store, at, Right::Lease(lease), entry).await
}

async fn fill_by(store: &dyn Store, at: &Address, right: Right, entry: Entry) -> Filled {
    store.fill(at, right, vec![Write { at: at.clone(), entry }]).await.expect("an answer")
}

pub(crate) async fn payload(store: &dyn Store, at: &Address) -> Option<String> {
    let entry = store.get(at).await.expect("an answer")?;
    Some(String::from_utf8(entry.payload().bytes().to_vec()).expect("text"))
}

async fn is_led(store: &dyn Store, at: &Address) -> bool {
    !matches!(ask(store, at, SHORT, None).await.1, Lead::Granted { .. })
}

/// Until the lease that somebody holds has run out.
async fn lead_after_expiry(store: &dyn Store, at: &Address) -> Lease {
    loop {
        match ask(store, at, LONG, None).await.1 {
            Lead::Granted { lease, .. } => return lease,
            Lead::Wait { remaining, .. } => tokio::time::sleep(remaining + Duration::from_millis(1)).await,
            other => panic!("neither granted nor held: {other:?}"),
        }
    }
}

pub(crate) async fn a_fill_is_read(store: &dyn Store) {
    let at = fresh("filled");
    assert!(store.get(&at).await.expect("an answer").is_none());
    let lease = lead(store, &at, LONG).await;
    let filled = entry(lease.token, Kind::Value, "v");
    assert_eq!(fill_by(store, &at, Right::Lease(lease), filled.clone()).await, Filled::Stored);
    let read = store.get(&at).await.expect("an answer").expect("an entry");
    assert_eq!(read.payload().bytes(), "v");
    let (read, filled) = (read.meta(), filled.meta());
    assert_eq!(
        (read.kind, read.id, read.codec, read.lifetimes),
        (filled.kind, filled.id, filled.codec, filled.lifetimes)
    );
    let drift = read.answered.since(filled.answered).max(filled.answered.since(read.answered));
    assert!(drift < Duration::from_secs(1), "its age is kept: {drift:?}");
    let Lead::Hit(hit) = ask(store, &at, LONG, None).await.1 else { panic!("no hit") };
    assert_eq!(hit.meta().id, lease.token);
}

pub(crate) async fn the_second_waits_for_the_first(store: &dyn Store) {
    let at = fresh("held");
    let lease = lead(store, &at, LONG).await;
    let Lead::Wait { remaining, holder, .. } = ask(store, &at, LONG, None).await.1 else { panic!("no wait") };
    assert_eq!(holder, lease.token);
    assert!(remaining <= LONG && remaining > LONG / 2, "{remaining:?}");
}

pub(crate) async fn a_repeated_question_is_granted_again(store: &dyn Store) {
    let at = fresh("repeated");
    let lease = lead(store, &at, LONG).await;
    let again = store.lead(&at, Ask { token: lease.token, lease: LONG, seen: None }).await.expect("an answer");
    assert!(matches!(again, Lead::Granted { lease: same, .. } if same == lease), "{again:?}");
}

pub(crate) async fn only_token_and_stamp_fill(store: &dyn Store) {
    let at = fresh("foreign");
    let lease = lead(store, &at, LONG).await;
    let foreign = [Lease { token: token(), ..lease }, Lease { stamp: lease.stamp + 1, ..lease }];
    for foreign in foreign {
        assert_eq!(fill(store, &at, foreign, "x").await, Filled::Fenced);
        assert_eq!(store.extend(&at, foreign, LONG).await.expect("an answer"), Hold::Lost);
    }
    assert_eq!(fill(store, &at, lease, "v").await, Filled::Stored);
    assert_eq!(payload(store, &at).await.as_deref(), Some("v"));
}

pub(crate) async fn a_repeated_fill_says_stored(store: &dyn Store) {
    let at = fresh("twice");
    let lease = lead(store, &at, LONG).await;
    for _ in 0..2 {
        assert_eq!(fill(store, &at, lease, "v").await, Filled::Stored);
    }
}

pub(crate) async fn a_late_fill_is_fenced(store: &dyn Store) {
    let at = fresh("late");
    let late = lead(store, &at, SHORT).await;
    let next = lead_after_expiry(store, &at).await;
    assert!(next.stamp > late.stamp, "fencing tokens grow");
    assert_eq!(fill(store, &at, late, "old").await, Filled::Fenced);
    assert_eq!(store.extend(&at, late, LONG).await.expect("an answer"), Hold::Lost);
    assert_eq!(store.abandon(&at, late.token, None).await.expect("an answer"), Hold::Lost);
    assert_eq!(fill(store, &at, next, "new").await, Filled::Stored);
    assert_eq!(fill(store, &at, late, "old").await, Filled::Fenced);
    assert_eq!(payload(store, &at).await.as_deref(), Some("new"));
}

pub(crate) async fn an_extended_lease_lives_on(store: &dyn Store) {
    let at = fresh("extended");
    let lease = lead(store, &at, Duration::from_secs(2)).await;
    assert_eq!(store.extend(&at, lease, LONG).await.expect("an answer"), Hold::Held);
    let Lead::Wait { remaining, .. } = ask(store, &at, LONG, None).await.1 else { panic!("no wait") };
    assert!(remaining > LONG / 2, "{remaining:?}");
}

pub(crate) async fn an_abandoned_lease_is_free(store: &dyn Store) {
    let at = fresh("abandoned");
    let lease = lead(store, &at, LONG).await;
    assert_eq!(store.abandon(&at, token(), None).await.expect("an answer"), Hold::Lost);
    assert!(is_led(store, &at).await);
    assert_eq!(store.abandon(&at, lease.token, None).await.expect("an answer"), Hold::Held);
    lead(store, &at, LONG).await;
    assert_eq!(fill(store, &at, lease, "x").await, Filled::Fenced);
}

pub(crate) async fn a_tombstone_holds_off_and_doubles(store: &dyn Store) {
    let at = fresh("failed");
    let tombstone = Tombstone { first: Duration::from_millis(400), most: Duration::from_millis(1_400), code: 503 };
    let mut blocked = Vec::new();
    for _ in 0..4 {
        let lease = loop {
            match ask(store, &at, LONG, None).await.1 {
                Lead::Granted { lease, .. } => break lease,
                Lead::Failed { retry_in, code: 503, .. } => tokio::time::sleep(retry_in).await,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(store.abandon(&at, lease.token, Some(tombstone)).await.expect("an answer"), Hold::Held);
        let Lead::Failed { retry_in, code, .. } = ask(store, &at, LONG, None).await.1 else { panic!("not held off") };
        assert_eq!(code, 503);
        blocked.push(retry_in.as_millis());
    }
    for (blocked, most) in blocked.iter().zip([400, 800, 1_400, 1_400]) {
        assert!(*blocked <= most && *blocked > most / 2, "{blocked} of {most}");
    }
}

pub(crate) async fn success_forgets_failures(store: &dyn Store) {
    let at = fresh("recovered");
    let tombstone = Tombstone { first: Duration::from_millis(40), most: LONG, code: 0 };
    for _ in 0..3 {
        let Lead::Granted { lease, .. } = ask(store, &at, LONG, None).await.1 else { panic!("held off") };
        store.abandon(&at, lease.token, Some(tombstone)).await.expect("an answer");
        let Lead::Failed { retry_in, .. } = ask(store, &at, LONG, None).await.1 else { panic!("not held off") };
        assert!(retry_in <= Duration::from_millis(40), "the count starts anew: {retry_in:?}");
        tokio::time::sleep(retry_in + Duration::from_millis(1)).await;
        let Lead::Granted { lease, .. } = ask(store, &at, LONG, None).await.1 else { panic!("held off") };
        assert_eq!(fill(store, &at, lease, "v").await, Filled::Stored);
        store.invalidate(&at).await.expect("an answer");
    }
}

pub(crate) async fn an_invalidation_drops_entry_and_lease(store: &dyn Store) {
    let at = fresh("invalidated");
    let lease = lead(store, &at, LONG).await;
    fill(store, &at, lease, "old").await;
    let (_, refresh) = ask(store, &at, LONG, Some(lease.token)).await;
    let Lead::Granted { lease: refresh, seen_alive: true } = refresh else { panic!("{refresh:?}") };
    store.invalidate(&at).await.expect("an answer");
    assert!(store.get(&at).await.expect("an answer").is_none());
    assert_eq!(fill(store, &at, refresh, "older still").await, Filled::Fenced);
    assert!(store.get(&at).await.expect("an answer").is_none());
    store.invalidate(&at).await.expect("nothing there is no error");
}

/// protocol: lead(t), invalidate, a copy of lead(t) arrives late, fill(t). Fails if a fill is checked by token alone.
pub(crate) async fn a_late_duplicate_of_a_question_cannot_fill(store: &dyn Store) {
    let at = fresh("rearmed");
    let lease = lead(store, &at, LONG).await;
    store.invalidate(&at).await.expect("an answer");
    let copy = store.lead(&at, Ask { token: lease.token, lease: LONG, seen: None }).await.expect("an answer");
    assert!(matches!(copy, Lead::Granted { lease: other, .. } if other.stamp != lease.stamp), "{copy:?}");
    assert_eq!(fill(store, &at, lease, "old").await, Filled::Fenced);
    assert!(store.get(&at).await.expect("an answer").is_none());
}

pub(crate) async fn only_an_unseen_entry_is_a_hit(store: &dyn Store) {
    let at = fresh("seen");
    let first = lead(store, &at, LONG).await;
    fill(store, &at, first, "1").await;
    let (_, again) = ask(store, &at, LONG, Some(first.token)).await;
    let Lead::Granted { lease: second, seen_alive: true } = again else { panic!("{again:?}") };
    let (_, waiting) = ask(store, &at, LONG, Some(first.token)).await;
    assert!(matches!(waiting, Lead::Wait { seen_alive: true, .. }), "{waiting:?}");
    assert_eq!(payload(store, &at).await.as_deref(), Some("1"), "it stays while it is refreshed");
    fill(store, &at, second, "2").await;
    let (_, hit) = ask(store, &at, LONG, Some(first.token)).await;
    assert!(matches!(hit, Lead::Hit(entry) if entry.meta().id == second.token));
}

pub(crate) async fn a_seen_entry_that_is_gone_is_reported(store: &dyn Store) {
    let at = fresh("vanished");
    let gone = Some(token());
    let (holder, granted) = ask(store, &at, LONG, gone).await;
    assert!(matches!(granted, Lead::Granted { seen_alive: false, .. }), "{granted:?}");
    let (_, waiting) = ask(store, &at, LONG, gone).await;
    assert!(matches!(waiting, Lead::Wait { seen_alive: false, .. }), "{waiting:?}");
    let tombstone = Tombstone { first: LONG, most: LONG, code: 0 };
    store.abandon(&at, holder, Some(tombstone)).await.expect("an answer");
    let (_, failed) = ask(store, &at, LONG, gone).await;
    assert!(matches!(failed, Lead::Failed { seen_alive: false, .. }), "{failed:?}");
}

pub(crate) async fn a_marker_is_promoted_by_its_id_alone(store: &dyn Store) {
    let at = fresh("promoted");
    let lease = lead(store, &at, LONG).await;
    let marker = entry(lease.token, Kind::Pass, "");
    assert_eq!(fill_by(store, &at, Right::Lease(lease), marker).await, Filled::Stored);
    let read = store.get(&at).await.expect("an answer").expect("a marker");
    assert_eq!((read.meta().kind, read.meta().id), (Kind::Pass, lease.token));
    let value = entry(token(), Kind::Value, "v");
    assert_eq!(fill_by(store, &at, Right::Promote(token()), value.clone()).await, Filled::Fenced);
    assert_eq!(fill_by(store, &at, Right::Promote(lease.token), value).await, Filled::Stored);
    let late = entry(token(), Kind::Value, "late");
    assert_eq!(fill_by(store, &at, Right::Promote(lease.token), late).await, Filled::Fenced);
    assert_eq!(payload(store, &at).await.as_deref(), Some("v"));
}

/// Else an older fill would overwrite the newer value.
pub(crate) async fn a_promotion_ends_the_lease(store: &dyn Store) {
    let at = fresh("promoted over a lease");
    let lease = lead(store, &at, LONG).await;
    fill_by(store, &at, Right::Lease(lease), entry(lease.token, Kind::PassStore, "")).await;
    let (_, refresh) = ask(store, &at, LONG, Some(lease.token)).await;
    let Lead::Granted { lease: older, .. } = refresh else { panic!("{refresh:?}") };
    let value = entry(token(), Kind::Value, "newer");
    assert_eq!(fill_by(store, &at, Right::Promote(lease.token), value).await, Filled::Stored);
    assert_eq!(fill(store, &at, older, "older").await, Filled::Fenced);
    assert_eq!(payload(store, &at).await.as_deref(), Some("newer"));
}

pub(crate) async fn whoever_waits_is_woken(store: &dyn Store) {
    for (how, gone) in [("fill", false), ("abandon", false), ("invalidate", true)] {
        let at = fresh(how);
        let mut leader = store.listen(&at);
        let token = leader.token();
        let granted = store.lead(&at, Ask { token, lease: LONG, seen: None }).await.expect("an answer");
        let Lead::Granted { lease, .. } = granted else { panic!("{granted:?}") };
        let mut waiter = store.listen(&at);
        let token = waiter.token();
        eventually("wake-ups are heard", async || {
            let wait = store.lead(&at, Ask { token, lease: LONG, seen: None }).await.expect("an answer");
            matches!(wait, Lead::Wait { registered: true, .. })
        })
        .await;
        match how {
            "fill" => assert_eq!(fill(store, &at, lease, "v").await, Filled::Stored),
            "abandon" => assert_eq!(store.abandon(&at, lease.token, None).await.expect("an answer"), Hold::Held),
            _ => store.invalidate(&at).await.expect("an answer"),
        }
        let woken = tokio::time::timeout(LONG, waiter.woken()).await;
        assert_eq!(woken, Ok(gone), "{how}");
        if gone {
            tokio::time::timeout(LONG, leader.gone()).await.expect("the holder hears of it");
        }
    }
}

pub(crate) async fn schemas_share_leases_but_not_entries(store: &dyn Store) {
    let of = |key: &str, schema| Address::new("suite", schema, key);
    let key = format!("schemas/{:?}", token());
    let (old, new) = (of(&key, 1), of(&key, 2));
    let lease = lead(store, &old, LONG).await;
    let Lead::Wait { holder, .. } = ask(store, &new, LONG, None).await.1 else { panic!("a lease of its own") };
    assert_eq!(holder, lease.token);
    fill(store, &old, lease, "old").await;
    assert!(store.get(&new).await.expect("an answer").is_none());
    let lease = lead(store, &new, LONG).await;
    fill(store, &new, lease, "new").await;
    assert_eq!(payload(store, &old).await.as_deref(), Some("old"));
    store.invalidate(&new).await.expect("an answer");
    for at in [old, new] {
        assert!(store.get(&at).await.expect("an answer").is_none(), "{at:?}");
    }
}

pub(crate) async fn several_writes_land_together(store: &dyn Store) {
    let name = format!("variants/{:?}", token());
    let key = stampede_guard::Key::from(name);
    let primary = Address::new("suite", 7, &key);
    let [en, de] = ["en", "de"].map(|language| Address::new("suite", 7, key.clone().variant(language)));
    let write = |at: &Address, id, text| Write { at: at.clone(), entry: entry(id, Kind::Value, text) };
    let lease = lead(store, &primary, LONG).await;
    let both = vec![write(&primary, lease.token, "fields"), write(&en, lease.token, "hello")];
    assert_eq!(store.fill(&primary, Right::Lease(lease), both.clone()).await.expect("an answer"), Filled::Stored);
    assert_eq!(store.fill(&primary, Right::Lease(lease), both).await.expect("an answer"), Filled::Stored);
    assert_eq!(payload(store, &primary).await.as_deref(), Some("fields"));
    assert_eq!(payload(store, &en).await.as_deref(), Some("hello"));
    assert!(store.get(&de).await.expect("an answer").is_none());
    let lease = lead(store, &de, LONG).await;
    assert_eq!(fill(store, &de, lease, "hallo").await, Filled::Stored);
    assert_eq!(payload(store, &en).await.as_deref(), Some("hello"), "variants have leases of their own");
}

pub(crate) async fn any_bytes_are_a_key(store: &dyn Store) {
    let namespace = format!("odd{}", token().as_bytes().escape_ascii()).replace(|c: char| !c.is_alphanumeric(), "");
    let keys: Vec<Vec<u8>> = vec![
        vec![],
        b"a".to_vec(),
        b"}".to_vec(),
        b"{a}".to_vec(),
        b"a}:l".to_vec(),
        b"a\0b".to_vec(),
        b"a\r\nb".to_vec(),
        vec![0xff, 0xfe],
        "\u{1f980}".into(),
        vec![b'x'; 64],
        vec![b'x'; 65],
        vec![b'x'; 1 << 20],
    ];
    let texts: Vec<&'static str> = (0..keys.len()).map(|i| &*format!("{i}").leak()).collect();
    let at = |key: &Vec<u8>| Address::new(namespace.as_str(), 0, key.clone());
    for (key, text) in keys.iter().zip(&texts) {
        let lease = lead(store, &at(key), LONG).await;
        assert_eq!(fill(store, &at(key), lease, text).await, Filled::Stored);
    }
    for (key, text) in keys.iter().zip(&texts) {
        assert_eq!(payload(store, &at(key)).await.as_deref(), Some(*text));
    }
}

pub(crate) async fn a_dead_holder_is_a_ghost(store: &dyn Store) {
    let at = fresh("ghost");
    let mut dead = store.listen(&at);
    let ghost = dead.token();
    let mut alive = store.listen(&at);
    assert!(!alive.is_ghost(ghost));
    assert!(!alive.is_ghost(token()), "of another process");
    drop(dead);
    assert!(alive.is_ghost(ghost));
    let spent = alive.token();
    let _ = alive.token();
    assert!(alive.is_ghost(spent), "a token that was asked with and not granted");
}

pub(crate) async fn an_expired_entry_is_gone(store: &dyn Store) {
    let at = fresh("expired");
    let lease = lead(store, &at, LONG).await;
    let meta = *entry(lease.token, Kind::Value, "v").meta();
    let brief = Entry::new(Meta { lifetimes: Lifetimes::default(), ..meta }, Bytes::from_static(b"v"));
    assert_eq!(fill_by(store, &at, Right::Lease(lease), brief.clone()).await, Filled::Stored);
    assert!(store.get(&at).await.expect("an answer").is_some(), "kept for those on their way to read it");
    tokio::time::sleep(brief.meta().lifetimes.retention() + Duration::from_millis(20)).await;
    assert!(store.get(&at).await.expect("an answer").is_none());
    lead(store, &at, LONG).await;
}
