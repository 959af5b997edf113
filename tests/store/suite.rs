//! `store_suite!`: the same cases for every implementation.

use crate::support::eventually;
use bytes::Bytes;
use stampede_guard::store::{
    CacheKey, Entry, FailureMarker, FillCondition, FillOutcome, Inbox, Kind, Lease, LeaseReply, LeaseRequest,
    LeaseStatus, Leaves, Lifetimes, Meta, Payload, RedirectExtension, Renewal, Store, Timestamp, Token, Write,
};
use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

/// Instantiates every case for one store.
#[macro_export]
macro_rules! store_suite {
    ($name:ident, $store:expr) => {
        $crate::store_suite!($name, $store;
            filled_entry_can_be_read
            second_lease_request_waits_for_first
            later_lease_has_a_higher_stamp_than_the_one_waited_for
            repeated_lease_request_is_granted_again
            fill_needs_token_and_stamp_of_lease
            repeated_fill_reports_stored
            a_late_fill_is_fenced
            an_extended_lease_lives_on
            released_lease_is_free
            failure_marker_blocks_leases_and_counts
            failures_are_forgotten_with_their_marker
            success_resets_failure_count
            an_invalidation_drops_entry_and_lease
            late_duplicate_of_lease_request_cannot_fill
            expired_value_is_stale_and_has_no_lease
            expiry_drops_markers_and_stores_nothing
            only_an_unseen_entry_is_a_hit
            seen_entry_that_is_no_longer_stored_is_reported
            hit_for_pass_marker_is_replaced_by_its_id_alone
            marker_replacement_ends_lease
            waiter_is_woken_by_fill_release_and_invalidation
            layouts_share_leases_but_not_entries
            entry_of_another_layout_with_the_same_name_is_a_miss
            several_writes_are_stored_together
            a_fill_extends_only_redirects_that_are_still_stored
            any_bytes_are_a_key
            lease_of_dropped_listener_is_orphaned
            expired_entry_is_a_miss
            validator_is_stored_with_its_entry
            renewal_replaces_all_but_the_rest_of_the_payload
            renewal_of_an_absent_or_other_entry_stores_the_whole
            renewal_after_an_invalidation_restores_nothing
            renewal_by_a_lost_lease_changes_nothing
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

/// Returns a new cache key for each call.
pub(crate) fn fresh(name: &str) -> CacheKey {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    CacheKey::new("suite", 7, format!("{name}/{}", NEXT.fetch_add(1, Relaxed)))
}

pub(crate) fn token() -> Token {
    Token::unique(Inbox::unique())
}

pub(crate) fn entry(id: Token, kind: Kind, payload: &'static str) -> Entry {
    let lifetimes = Lifetimes::fresh_for(LONG);
    let mut meta = Meta::new(kind, id, Timestamp::now());
    (meta.cost, meta.lifetimes, meta.codec) = (Duration::from_millis(5), lifetimes, 9);
    Entry::new(meta, Bytes::from_static(payload.as_bytes()))
}

/// Returns a value with the token and the stamp of the lease.
pub(crate) fn entry_under(lease: Lease, payload: &'static str) -> Entry {
    let entry = entry(lease.token, Kind::Value, payload);
    Entry::new(Meta { stamp: lease.stamp, ..*entry.meta() }, entry.payload().clone())
}

pub(crate) async fn ask(
    store: &dyn Store,
    key: &CacheKey,
    lease: Duration,
    seen: Option<Token>,
) -> (Token, LeaseReply) {
    let token = token();
    let mut request = LeaseRequest::new(token, lease);
    request.seen = seen;
    (token, store.get_or_lease(key, request).await.expect("an answer"))
}

pub(crate) async fn lead(store: &dyn Store, key: &CacheKey, span: Duration) -> Lease {
    match ask(store, key, span, None).await.1 {
        LeaseReply::Granted { lease, .. } => lease,
        other => panic!("not granted: {other:?}"),
    }
}

pub(crate) async fn fill(store: &dyn Store, key: &CacheKey, lease: Lease, payload: &'static str) -> FillOutcome {
    fill_by(store, key, FillCondition::Lease(lease), entry_under(lease, payload)).await
}

pub(crate) async fn fill_by(store: &dyn Store, key: &CacheKey, right: FillCondition, entry: Entry) -> FillOutcome {
    store.fill(key, right, vec![Write::new(key.clone(), entry)]).await.expect("an answer")
}

pub(crate) async fn payload(store: &dyn Store, key: &CacheKey) -> Option<String> {
    let entry = store.get(key).await.expect("an answer")?;
    Some(String::from_utf8(entry.payload().bytes().to_vec()).expect("text"))
}

pub(crate) async fn is_led(store: &dyn Store, key: &CacheKey) -> bool {
    !matches!(ask(store, key, SHORT, None).await.1, LeaseReply::Granted { .. })
}

/// Waits until no lease is held, and acquires the next one. Over several servers, the time to ask them all may be
/// longer than a short lease, which is then not granted.
pub(crate) async fn lead_when_free(store: &dyn Store, key: &CacheKey, span: Duration) -> Lease {
    loop {
        match ask(store, key, span, None).await.1 {
            LeaseReply::Granted { lease, .. } => return lease,
            LeaseReply::Wait { remaining, .. } => tokio::time::sleep(remaining + Duration::from_millis(1)).await,
            other => panic!("neither granted nor held: {other:?}"),
        }
    }
}

pub(crate) async fn filled_entry_can_be_read(store: &dyn Store) {
    let key = fresh("filled");
    assert!(store.get(&key).await.expect("an answer").is_none());
    let lease = lead(store, &key, LONG).await;
    let filled = entry_under(lease, "v");
    assert_eq!(fill_by(store, &key, FillCondition::Lease(lease), filled.clone()).await, FillOutcome::Stored);
    let read = store.get(&key).await.expect("an answer").expect("an entry");
    assert_eq!(read.payload().bytes(), "v");
    let (read, filled) = (read.meta(), filled.meta());
    assert_eq!(
        (read.kind, read.id, read.stamp, read.codec, read.lifetimes),
        (filled.kind, filled.id, lease.stamp, filled.codec, filled.lifetimes)
    );
    let drift = read.response_time.since(filled.response_time).max(filled.response_time.since(read.response_time));
    assert!(drift < Duration::from_secs(1), "the response time is kept: {drift:?}");
    let LeaseReply::Hit(hit) = ask(store, &key, LONG, None).await.1 else { panic!("no hit") };
    assert_eq!(hit.meta().id, lease.token);
}

pub(crate) async fn second_lease_request_waits_for_first(store: &dyn Store) {
    let key = fresh("held");
    let lease = lead(store, &key, LONG).await;
    let LeaseReply::Wait { remaining, holder, .. } = ask(store, &key, LONG, None).await.1 else { panic!("no wait") };
    assert_eq!((holder.token, holder.stamp), (lease.token, lease.stamp));
    assert!(remaining <= LONG && remaining > LONG / 2, "{remaining:?}");
}

/// By the stamps a refresh tells a fetch that has begun since it asked from the one that it has met.
pub(crate) async fn later_lease_has_a_higher_stamp_than_the_one_waited_for(store: &dyn Store) {
    let key = fresh("stamps");
    let mut seen = None;
    for _ in 0..5 {
        let (token, granted) = ask(store, &key, LONG, seen).await;
        let LeaseReply::Granted { lease, .. } = granted else { panic!("not granted: {granted:?}") };
        let LeaseReply::Wait { holder: met, .. } = ask(store, &key, LONG, seen).await.1 else { panic!("no wait") };
        fill(store, &key, lease, "first").await;
        let first = store.get(&key).await.expect("an answer").expect("an entry");
        assert_eq!((met.stamp, first.meta().stamp), (lease.stamp, lease.stamp));
        let (_, granted) = ask(store, &key, LONG, Some(token)).await;
        let LeaseReply::Granted { lease, .. } = granted else { panic!("not granted: {granted:?}") };
        fill(store, &key, lease, "second").await;
        let second = store.get(&key).await.expect("an answer").expect("an entry");
        assert!(second.meta().stamp > met.stamp, "{second:?}");
        seen = Some(second.meta().id);
    }
}

pub(crate) async fn repeated_lease_request_is_granted_again(store: &dyn Store) {
    let key = fresh("repeated");
    let lease = lead(store, &key, LONG).await;
    let again = store.get_or_lease(&key, LeaseRequest::new(lease.token, LONG)).await.expect("an answer");
    assert!(matches!(again, LeaseReply::Granted { lease: same, .. } if same == lease), "{again:?}");
}

pub(crate) async fn fill_needs_token_and_stamp_of_lease(store: &dyn Store) {
    let key = fresh("foreign");
    let lease = lead(store, &key, LONG).await;
    let foreign = [Lease { token: token(), ..lease }, Lease { stamp: lease.stamp + 1, ..lease }];
    for foreign in foreign {
        assert_eq!(fill(store, &key, foreign, "x").await, FillOutcome::Fenced);
        assert_eq!(store.extend(&key, foreign, LONG).await.expect("an answer"), LeaseStatus::Lost);
    }
    assert_eq!(fill(store, &key, lease, "v").await, FillOutcome::Stored);
    assert_eq!(payload(store, &key).await.as_deref(), Some("v"));
}

pub(crate) async fn repeated_fill_reports_stored(store: &dyn Store) {
    let key = fresh("twice");
    let lease = lead(store, &key, LONG).await;
    for _ in 0..2 {
        assert_eq!(fill(store, &key, lease, "v").await, FillOutcome::Stored);
    }
}

pub(crate) async fn a_late_fill_is_fenced(store: &dyn Store) {
    let key = fresh("late");
    let late = lead_when_free(store, &key, SHORT).await;
    let next = lead_when_free(store, &key, LONG).await;
    assert!(next.stamp > late.stamp, "fencing tokens grow");
    assert_eq!(fill(store, &key, late, "old").await, FillOutcome::Fenced);
    assert_eq!(store.extend(&key, late, LONG).await.expect("an answer"), LeaseStatus::Lost);
    assert_eq!(store.release(&key, late.token, None).await.expect("an answer"), LeaseStatus::Lost);
    assert_eq!(fill(store, &key, next, "new").await, FillOutcome::Stored);
    assert_eq!(fill(store, &key, late, "old").await, FillOutcome::Fenced);
    assert_eq!(payload(store, &key).await.as_deref(), Some("new"));
}

pub(crate) async fn an_extended_lease_lives_on(store: &dyn Store) {
    let key = fresh("extended");
    let lease = lead(store, &key, Duration::from_secs(2)).await;
    assert_eq!(store.extend(&key, lease, LONG).await.expect("an answer"), LeaseStatus::Held);
    let LeaseReply::Wait { remaining, .. } = ask(store, &key, LONG, None).await.1 else { panic!("no wait") };
    assert!(remaining > LONG / 2, "{remaining:?}");
}

pub(crate) async fn released_lease_is_free(store: &dyn Store) {
    let key = fresh("released");
    let lease = lead(store, &key, LONG).await;
    assert_eq!(store.release(&key, token(), None).await.expect("an answer"), LeaseStatus::Lost);
    assert!(is_led(store, &key).await);
    assert_eq!(store.release(&key, lease.token, None).await.expect("an answer"), LeaseStatus::Held);
    lead(store, &key, LONG).await;
    assert_eq!(fill(store, &key, lease, "x").await, FillOutcome::Fenced);
}

pub(crate) async fn failure_marker_blocks_leases_and_counts(store: &dyn Store) {
    let key = fresh("failed");
    for (earlier, blocks_for) in [400, 40, 0, 400].into_iter().map(Duration::from_millis).enumerate() {
        let (token, lease) = loop {
            match ask(store, &key, LONG, None).await {
                (token, LeaseReply::Granted { lease, failures, .. }) => {
                    assert_eq!(failures as usize, earlier);
                    break (token, lease);
                }
                (_, LeaseReply::Failed { retry_in, report, .. }) if report == REPORT => {
                    tokio::time::sleep(retry_in).await
                }
                (_, other) => panic!("{other:?}"),
            }
        };
        let copy = store.get_or_lease(&key, LeaseRequest::new(token, LONG)).await.expect("an answer");
        assert!(matches!(copy, LeaseReply::Granted { failures, .. } if failures as usize == earlier), "{copy:?}");
        let failure_marker = FailureMarker { blocks_for, remembered_for: LONG, report: Bytes::from_static(REPORT) };
        assert_eq!(
            store.release(&key, lease.token, Some(failure_marker.clone())).await.expect("an answer"),
            LeaseStatus::Held
        );
        if blocks_for > Duration::from_millis(100) {
            let LeaseReply::Failed { retry_in, report, .. } = ask(store, &key, LONG, None).await.1 else {
                panic!("not held off")
            };
            assert_eq!(report, REPORT);
            assert!(retry_in <= blocks_for && retry_in > blocks_for / 2, "{retry_in:?} of {blocks_for:?}");
        }
    }
}

pub(crate) async fn failures_are_forgotten_with_their_marker(store: &dyn Store) {
    let key = fresh("forgotten");
    let lease = lead(store, &key, LONG).await;
    let failure_marker = FailureMarker {
        blocks_for: Duration::ZERO,
        remembered_for: Duration::from_millis(20),
        report: Bytes::from_static(REPORT),
    };
    store.release(&key, lease.token, Some(failure_marker.clone())).await.expect("an answer");
    tokio::time::sleep(Duration::from_millis(40)).await;
    let granted = ask(store, &key, LONG, None).await.1;
    assert!(matches!(granted, LeaseReply::Granted { failures: 0, .. }), "{granted:?}");
}

pub(crate) async fn success_resets_failure_count(store: &dyn Store) {
    let key = fresh("recovered");
    let failure_marker =
        FailureMarker { blocks_for: Duration::from_millis(40), remembered_for: LONG, report: Bytes::new() };
    for _ in 0..3 {
        let LeaseReply::Granted { lease, failures: 0, .. } = ask(store, &key, LONG, None).await.1 else {
            panic!("the count does not start again")
        };
        store.release(&key, lease.token, Some(failure_marker.clone())).await.expect("an answer");
        let lease = loop {
            match ask(store, &key, LONG, None).await.1 {
                LeaseReply::Failed { retry_in, .. } => tokio::time::sleep(retry_in + Duration::from_millis(1)).await,
                LeaseReply::Granted { lease, failures: 1, .. } => break lease,
                reply => panic!("{reply:?}"),
            }
        };
        assert_eq!(fill(store, &key, lease, "v").await, FillOutcome::Stored);
        store.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("an answer");
    }
}

pub(crate) async fn an_invalidation_drops_entry_and_lease(store: &dyn Store) {
    let key = fresh("invalidated");
    let lease = lead(store, &key, LONG).await;
    fill(store, &key, lease, "old").await;
    let (_, refresh) = ask(store, &key, LONG, Some(lease.token)).await;
    let LeaseReply::Granted { lease: refresh, seen_alive: true, .. } = refresh else { panic!("{refresh:?}") };
    store.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("an answer");
    assert!(store.get(&key).await.expect("an answer").is_none());
    assert_eq!(fill(store, &key, refresh, "older still").await, FillOutcome::Fenced);
    assert!(store.get(&key).await.expect("an answer").is_none());
    store.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("an absent entry is not an error");
}

pub(crate) async fn expired_value_is_stale_and_has_no_lease(store: &dyn Store) {
    let key = fresh("expired by request");
    let lease = lead(store, &key, LONG).await;
    let value = entry(lease.token, Kind::Value, "v");
    let mut meta = *value.meta();
    meta.lifetimes.stale_if_error = LONG;
    let value = Entry::new(meta, value.payload().clone());
    assert_eq!(fill_by(store, &key, FillCondition::Lease(lease), value).await, FillOutcome::Stored);
    let (_, refresh) = ask(store, &key, LONG, Some(lease.token)).await;
    let LeaseReply::Granted { lease: refresh, .. } = refresh else { panic!("{refresh:?}") };
    store.invalidate(std::slice::from_ref(&key), Leaves::StaleValues).await.expect("an answer");
    let read = async || store.get(&key).await.expect("an answer").expect("the value is kept");
    let (expired, now) = (read().await, Timestamp::now());
    let lifetimes = expired.meta().lifetimes;
    assert!(lifetimes.fresh_for < Duration::from_secs(5) && lifetimes.fresh_for <= expired.age(now), "{lifetimes:?}");
    assert_eq!((lifetimes.stale_if_error, expired.payload().bytes()), (LONG, &Bytes::from("v")));
    assert_eq!(fill(store, &key, refresh, "fetched before").await, FillOutcome::Fenced);
    tokio::time::sleep(Duration::from_millis(400)).await;
    store.invalidate(std::slice::from_ref(&key), Leaves::StaleValues).await.expect("an answer");
    // The clock of a server is an estimate.
    let later = read().await.meta().lifetimes.fresh_for;
    assert!(later < expired.age(now) + Duration::from_millis(200), "the stale windows begin again: {later:?}");
    let (_, next) = ask(store, &key, LONG, Some(lease.token)).await;
    let LeaseReply::Granted { lease: next, seen_alive: true, .. } = next else { panic!("{next:?}") };
    assert_eq!(fill(store, &key, next, "new").await, FillOutcome::Stored);
    assert_eq!(read().await.meta().lifetimes, Lifetimes::fresh_for(LONG), "a fill is fresh");
}

pub(crate) async fn expiry_drops_markers_and_stores_nothing(store: &dyn Store) {
    let key = fresh("expired marker");
    store.invalidate(std::slice::from_ref(&key), Leaves::StaleValues).await.expect("an absent entry is not an error");
    let lease = lead(store, &key, LONG).await;
    let marker = entry(lease.token, Kind::HitForPass, "");
    fill_by(store, &key, FillCondition::Lease(lease), marker).await;
    store.invalidate(std::slice::from_ref(&key), Leaves::StaleValues).await.expect("an answer");
    assert!(store.get(&key).await.expect("an answer").is_none());
    // A call that the marker has let pass may have begun before.
    let value = entry(token(), Kind::Value, "fetched before");
    let replaced = fill_by(store, &key, FillCondition::ReplaceMarker(lease.token), value).await;
    assert_eq!(replaced, FillOutcome::Fenced);
}

/// Interleaving: `lead(t)`, `invalidate`, a late copy of `lead(t)`, `fill(t)`.
///
/// Seen to fail if a fill is checked by token alone.
pub(crate) async fn late_duplicate_of_lease_request_cannot_fill(store: &dyn Store) {
    let key = fresh("rearmed");
    let lease = lead(store, &key, LONG).await;
    store.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("an answer");
    let copy = store.get_or_lease(&key, LeaseRequest::new(lease.token, LONG)).await.expect("an answer");
    assert!(matches!(copy, LeaseReply::Granted { lease: other, .. } if other.stamp != lease.stamp), "{copy:?}");
    assert_eq!(fill(store, &key, lease, "old").await, FillOutcome::Fenced);
    assert!(store.get(&key).await.expect("an answer").is_none());
}

pub(crate) async fn only_an_unseen_entry_is_a_hit(store: &dyn Store) {
    let key = fresh("seen");
    let first = lead(store, &key, LONG).await;
    fill(store, &key, first, "1").await;
    let (_, again) = ask(store, &key, LONG, Some(first.token)).await;
    let LeaseReply::Granted { lease: second, seen_alive: true, .. } = again else { panic!("{again:?}") };
    let (_, waiting) = ask(store, &key, LONG, Some(first.token)).await;
    assert!(matches!(waiting, LeaseReply::Wait { seen_alive: true, .. }), "{waiting:?}");
    assert_eq!(payload(store, &key).await.as_deref(), Some("1"), "the entry stays while it is refreshed");
    fill(store, &key, second, "2").await;
    let (_, hit) = ask(store, &key, LONG, Some(first.token)).await;
    assert!(matches!(hit, LeaseReply::Hit(entry) if entry.meta().id == second.token));
}

pub(crate) async fn seen_entry_that_is_no_longer_stored_is_reported(store: &dyn Store) {
    let key = fresh("vanished");
    let gone = Some(token());
    let (holder, granted) = ask(store, &key, LONG, gone).await;
    assert!(matches!(granted, LeaseReply::Granted { seen_alive: false, .. }), "{granted:?}");
    let (_, waiting) = ask(store, &key, LONG, gone).await;
    assert!(matches!(waiting, LeaseReply::Wait { seen_alive: false, .. }), "{waiting:?}");
    let failure_marker = FailureMarker { blocks_for: LONG, remembered_for: LONG, report: Bytes::new() };
    store.release(&key, holder, Some(failure_marker)).await.expect("an answer");
    let (_, failed) = ask(store, &key, LONG, gone).await;
    assert!(matches!(failed, LeaseReply::Failed { seen_alive: false, .. }), "{failed:?}");
}

pub(crate) async fn hit_for_pass_marker_is_replaced_by_its_id_alone(store: &dyn Store) {
    let key = fresh("promoted");
    let lease = lead(store, &key, LONG).await;
    let marker = entry(lease.token, Kind::HitForPass, "");
    assert_eq!(fill_by(store, &key, FillCondition::Lease(lease), marker).await, FillOutcome::Stored);
    let read = store.get(&key).await.expect("an answer").expect("a marker");
    assert_eq!((read.meta().kind, read.meta().id), (Kind::HitForPass, lease.token));
    let value = entry(token(), Kind::Value, "v");
    assert_eq!(fill_by(store, &key, FillCondition::ReplaceMarker(token()), value.clone()).await, FillOutcome::Fenced);
    assert_eq!(fill_by(store, &key, FillCondition::ReplaceMarker(lease.token), value).await, FillOutcome::Stored);
    let late = entry(token(), Kind::Value, "late");
    assert_eq!(fill_by(store, &key, FillCondition::ReplaceMarker(lease.token), late).await, FillOutcome::Fenced);
    assert_eq!(payload(store, &key).await.as_deref(), Some("v"));
}

/// Otherwise an older fill would overwrite the newer value.
pub(crate) async fn marker_replacement_ends_lease(store: &dyn Store) {
    let key = fresh("promoted over a lease");
    let lease = lead(store, &key, LONG).await;
    fill_by(store, &key, FillCondition::Lease(lease), entry(lease.token, Kind::DoNotStore, "")).await;
    let (_, refresh) = ask(store, &key, LONG, Some(lease.token)).await;
    let LeaseReply::Granted { lease: older, .. } = refresh else { panic!("{refresh:?}") };
    let value = entry(token(), Kind::Value, "newer");
    assert_eq!(fill_by(store, &key, FillCondition::ReplaceMarker(lease.token), value).await, FillOutcome::Stored);
    assert_eq!(fill(store, &key, older, "older").await, FillOutcome::Fenced);
    assert_eq!(payload(store, &key).await.as_deref(), Some("newer"));
}

pub(crate) async fn waiter_is_woken_by_fill_release_and_invalidation(store: &dyn Store) {
    for (how, gone) in [("fill", false), ("release", false), ("invalidate", true)] {
        let key = fresh(how);
        let mut leader = store.listen(&key);
        let token = leader.token();
        let granted = store.get_or_lease(&key, LeaseRequest::new(token, LONG)).await.expect("an answer");
        let LeaseReply::Granted { lease, .. } = granted else { panic!("{granted:?}") };
        let mut waiter = store.listen(&key);
        let token = waiter.token();
        eventually("wake-ups arrive", async || {
            let wait = store.get_or_lease(&key, LeaseRequest::new(token, LONG)).await.expect("an answer");
            matches!(wait, LeaseReply::Wait { registered: true, .. })
        })
        .await;
        match how {
            "fill" => assert_eq!(fill(store, &key, lease, "v").await, FillOutcome::Stored),
            "release" => {
                assert_eq!(store.release(&key, lease.token, None).await.expect("an answer"), LeaseStatus::Held)
            }
            _ => _ = store.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("an answer"),
        }
        let woken = tokio::time::timeout(LONG, waiter.notified()).await;
        assert_eq!(woken, Ok(gone), "{how}");
        if gone {
            tokio::time::timeout(LONG, leader.invalidated()).await.expect("the holder is notified");
        }
    }
}

pub(crate) async fn layouts_share_leases_but_not_entries(store: &dyn Store) {
    let name = format!("layouts/{:?}", token());
    let of = |layout| CacheKey::new("suite", layout, name.as_str());
    let layouts = [(1, "one"), (2, "two"), (0xfedc_ba98_7654_3213, "three")];
    for (layout, text) in layouts {
        let lease = lead(store, &of(layout), LONG).await;
        let LeaseReply::Wait { holder, .. } = ask(store, &of(layout + 1), LONG, None).await.1 else {
            panic!("the layouts have separate leases")
        };
        assert_eq!(holder.token, lease.token);
        fill(store, &of(layout), lease, text).await;
    }
    for (layout, text) in layouts {
        assert_eq!(payload(store, &of(layout)).await.as_deref(), Some(text));
    }
    assert!(store.get(&of(9)).await.expect("an answer").is_none());
    store.invalidate(&[of(9)], Leaves::Nothing).await.expect("an answer");
    for (layout, text) in layouts {
        assert!(store.get(&of(layout)).await.expect("an answer").is_none(), "{text}");
    }
}

/// In Redis the two layouts share a name, and the second one replaces the entry of the first.
pub(crate) async fn entry_of_another_layout_with_the_same_name_is_a_miss(store: &dyn Store) {
    let name = format!("digits/{:?}", token());
    let [one, other] = [7, 7 + 16].map(|layout| CacheKey::new("suite", layout, name.as_str()));
    let lease = lead(store, &one, LONG).await;
    fill(store, &one, lease, "one").await;
    assert!(store.get(&other).await.expect("an answer").is_none());
    let lease = lead(store, &other, LONG).await;
    assert_eq!(fill(store, &other, lease, "other").await, FillOutcome::Stored);
    assert_eq!(payload(store, &other).await.as_deref(), Some("other"));
    assert_ne!(payload(store, &one).await.as_deref(), Some("other"));
}

pub(crate) async fn several_writes_are_stored_together(store: &dyn Store) {
    let name = format!("variants/{:?}", token());
    let key = stampede_guard::Key::from(name);
    let primary = CacheKey::new("suite", 7, &key);
    let [en, de] = ["en", "de"].map(|language| CacheKey::new("suite", 7, key.clone().variant(language)));
    let write = |key: &CacheKey, id, text| Write::new(key.clone(), entry(id, Kind::Value, text));
    let lease = lead(store, &primary, LONG).await;
    let both = vec![write(&primary, lease.token, "fields"), write(&en, lease.token, "hello")];
    assert_eq!(
        store.fill(&primary, FillCondition::Lease(lease), both.clone()).await.expect("an answer"),
        FillOutcome::Stored
    );
    assert_eq!(store.fill(&primary, FillCondition::Lease(lease), both).await.expect("an answer"), FillOutcome::Stored);
    assert_eq!(payload(store, &primary).await.as_deref(), Some("fields"));
    assert_eq!(payload(store, &en).await.as_deref(), Some("hello"));
    assert!(store.get(&de).await.expect("an answer").is_none());
    let lease = lead(store, &de, LONG).await;
    assert_eq!(fill(store, &de, lease, "hallo").await, FillOutcome::Stored);
    assert_eq!(payload(store, &en).await.as_deref(), Some("hello"), "variants have leases of their own");
}

/// Seen to fail in turn without the extension, without the comparison of ids, and without that of times.
pub(crate) async fn a_fill_extends_only_redirects_that_are_still_stored(store: &dyn Store) {
    let variant = |key: &CacheKey| {
        let key = stampede_guard::Key::new(key.primary()).variant("de");
        CacheKey::new("suite", 7, key)
    };
    let store_index = async |lifetime| {
        let key = fresh("index");
        let lease = lead(store, &key, LONG).await;
        let mut meta = *entry(lease.token, Kind::Value, "fields").meta();
        meta.lifetimes = Lifetimes::fresh_for(lifetime);
        let index = Entry::new(meta, Bytes::from_static(b"fields"));
        assert_eq!(fill_by(store, &key, FillCondition::Lease(lease), index).await, FillOutcome::Stored);
        (key, lease.token)
    };
    let second = Duration::from_secs(1);
    let (extended, others) = (store_index(second).await, store_index(second).await);
    let (long, dropped) = (store_index(LONG).await, store_index(second).await);
    let extensions =
        [(&extended, extended.1, LONG), (&others, token(), LONG), (&long, long.1, second), (&dropped, dropped.1, LONG)];
    for ((key, _), id, retention) in extensions {
        let variant = variant(key);
        let lease = lead(store, &variant, LONG).await;
        if *key == dropped.0 {
            store.invalidate(std::slice::from_ref(key), Leaves::Nothing).await.expect("an answer");
        }
        let mut write = Write::new(variant.clone(), entry(lease.token, Kind::Value, "hallo"));
        write.extensions = vec![RedirectExtension { key: key.clone(), id, retention }];
        let filled = store.fill(&variant, FillCondition::Lease(lease), vec![write]).await;
        assert_eq!(filled.expect("an answer"), FillOutcome::Stored);
    }
    assert_eq!(payload(store, &dropped.0).await, None, "it is not restored");
    tokio::time::sleep(second + Duration::from_millis(20)).await;
    for ((key, _), expected) in [(&extended, Some("fields")), (&others, None), (&long, Some("fields"))] {
        assert_eq!(payload(store, key).await.as_deref(), expected);
    }
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
    let cache_key = |key: &Vec<u8>| CacheKey::new(namespace.as_str(), 0, key.clone());
    for (key, text) in keys.iter().zip(&texts) {
        let lease = lead(store, &cache_key(key), LONG).await;
        assert_eq!(fill(store, &cache_key(key), lease, text).await, FillOutcome::Stored);
    }
    for (key, text) in keys.iter().zip(&texts) {
        assert_eq!(payload(store, &cache_key(key)).await.as_deref(), Some(*text));
    }
}

pub(crate) async fn lease_of_dropped_listener_is_orphaned(store: &dyn Store) {
    let key = fresh("orphaned");
    let mut dead = store.listen(&key);
    let ghost = dead.token();
    let mut alive = store.listen(&key);
    assert!(!alive.is_orphaned_lease(ghost));
    assert!(!alive.is_orphaned_lease(token()), "a token of another process");
    drop(dead);
    assert!(alive.is_orphaned_lease(ghost));
    let spent = alive.token();
    let _ = alive.token();
    assert!(alive.is_orphaned_lease(spent), "a token that was replaced before it was granted");
}

pub(crate) async fn expired_entry_is_a_miss(store: &dyn Store) {
    let key = fresh("expired");
    let lease = lead(store, &key, LONG).await;
    let mut meta = *entry(lease.token, Kind::Value, "v").meta();
    meta.lifetimes = Lifetimes::default();
    let brief = Entry::new(meta, Bytes::from_static(b"v"));
    assert_eq!(fill_by(store, &key, FillCondition::Lease(lease), brief.clone()).await, FillOutcome::Stored);
    assert!(store.get(&key).await.expect("an answer").is_some(), "retained for a grace time after its fill");
    tokio::time::sleep(brief.meta().lifetimes.retention() + Duration::from_millis(20)).await;
    assert!(store.get(&key).await.expect("an answer").is_none());
    lead(store, &key, LONG).await;
}

const VALIDATOR: &[u8] = b"\"v1\"";

/// Returns an entry with a validator, and with a freshness lifetime of its own.
fn validated(id: Token, payload: &'static str, fresh_for: Duration) -> Entry {
    let mut meta = *entry(id, Kind::Value, payload).meta();
    meta.lifetimes = Lifetimes::fresh_for(fresh_for);
    Entry::new(meta, Payload::from(Bytes::from(payload)).with_validator(Bytes::from(VALIDATOR)))
}

/// Stores an entry with a validator, and acquires the lease of the fetch that validates it. Returns its id and the lease.
pub(crate) async fn stored_and_led(store: &dyn Store, key: &CacheKey, lease: Duration) -> (Token, Lease) {
    let first = lead(store, key, LONG).await;
    let stored = validated(first.token, "old payload", LONG);
    assert_eq!(fill_by(store, key, FillCondition::Lease(first), stored).await, FillOutcome::Stored);
    match ask(store, key, lease, Some(first.token)).await.1 {
        LeaseReply::Granted { lease, seen_alive: true, .. } => (first.token, lease),
        other => panic!("not granted: {other:?}"),
    }
}

/// Renews the entry `id` by one whose payload begins with "new".
pub(crate) async fn renew(store: &dyn Store, key: &CacheKey, lease: Lease, id: Token) -> FillOutcome {
    let mut write = Write::new(key.clone(), validated(lease.token, "new payload", 2 * LONG));
    write.renews = Some(Renewal { id, changed: 3 });
    store.fill(key, FillCondition::Lease(lease), vec![write]).await.expect("an answer")
}

async fn read(store: &dyn Store, key: &CacheKey) -> Option<(Token, Duration, Payload)> {
    let entry = store.get(key).await.expect("an answer")?;
    Some((entry.meta().id, entry.meta().lifetimes.fresh_for, entry.payload().clone()))
}

pub(crate) async fn validator_is_stored_with_its_entry(store: &dyn Store) {
    let key = fresh("validated");
    let lease = lead(store, &key, LONG).await;
    fill(store, &key, lease, "v").await;
    assert_eq!(read(store, &key).await.expect("an entry").2.validator(), "", "it has none");
    let key = fresh("validated");
    let (id, _) = stored_and_led(store, &key, LONG).await;
    let (stored, _, payload) = read(store, &key).await.expect("an entry");
    assert_eq!((stored, &payload.bytes()[..], &payload.validator()[..]), (id, &b"old payload"[..], VALIDATOR));
}

pub(crate) async fn renewal_replaces_all_but_the_rest_of_the_payload(store: &dyn Store) {
    let key = fresh("renewed");
    let (old, lease) = stored_and_led(store, &key, LONG).await;
    for _ in 0..2 {
        assert_eq!(renew(store, &key, lease, old).await, FillOutcome::Stored, "also if it is sent twice");
        let (id, fresh_for, renewed) = read(store, &key).await.expect("an entry");
        assert_eq!((id, fresh_for), (lease.token, 2 * LONG));
        assert_eq!((&renewed.bytes()[..], &renewed.validator()[..]), (&b"new payload"[..], VALIDATOR));
    }
    assert_eq!(store.extend(&key, lease, LONG).await.expect("an answer"), LeaseStatus::Lost, "the lease has ended");
    let (_, hit) = ask(store, &key, LONG, Some(old)).await;
    assert!(matches!(&hit, LeaseReply::Hit(entry) if entry.meta().id == lease.token), "a waiter gets it: {hit:?}");
}

/// Seen to fail over Redis (no entry can be read) if the script does not compare the id.
pub(crate) async fn renewal_of_an_absent_or_other_entry_stores_the_whole(store: &dyn Store) {
    let (absent, other) = (fresh("absent"), fresh("replaced"));
    let without = lead(store, &absent, LONG).await;
    let (_, with_other) = stored_and_led(store, &other, LONG).await;
    for (key, lease) in [(absent, without), (other, with_other)] {
        assert_eq!(renew(store, &key, lease, token()).await, FillOutcome::Stored);
        let (id, _, stored) = read(store, &key).await.expect("an entry");
        assert_eq!((id, &stored.bytes()[..], &stored.validator()[..]), (lease.token, &b"new payload"[..], VALIDATOR));
    }
}

pub(crate) async fn renewal_after_an_invalidation_restores_nothing(store: &dyn Store) {
    let key = fresh("gone");
    let (old, lease) = stored_and_led(store, &key, LONG).await;
    store.invalidate(std::slice::from_ref(&key), Leaves::Nothing).await.expect("an answer");
    assert_eq!(renew(store, &key, lease, old).await, FillOutcome::Fenced);
    assert!(read(store, &key).await.is_none());
}

/// The entry has the id that a renewal names, and a marker would be replaced by its id alone.
///
/// Seen to fail over Redis (the entry is replaced by its beginning) if the script compares the id without a lease.
pub(crate) async fn renewal_by_a_lost_lease_changes_nothing(store: &dyn Store) {
    let key = fresh("overtaken");
    let (old, late) = stored_and_led(store, &key, SHORT).await;
    let next = loop {
        match ask(store, &key, LONG, Some(old)).await.1 {
            LeaseReply::Granted { lease, .. } => break lease,
            LeaseReply::Wait { remaining, .. } => tokio::time::sleep(remaining + Duration::from_millis(1)).await,
            other => panic!("neither granted nor held: {other:?}"),
        }
    };
    assert_eq!(renew(store, &key, late, old).await, FillOutcome::Fenced);
    let (id, fresh_for, stored) = read(store, &key).await.expect("an entry");
    assert_eq!((id, fresh_for, &stored.bytes()[..]), (old, LONG, &b"old payload"[..]));
    assert_eq!(renew(store, &key, next, old).await, FillOutcome::Stored);
}

/// The report of a failed leader. Any bytes pass through a store unchanged.
const REPORT: &[u8] = b"\0\xff503 \r\n";
