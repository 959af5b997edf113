//! Breaks one rule at a time; the checker then finds the property that the rule protects. With all rules, the same
//! configurations hold: they come from [`safety`](super::safety) and [`liveness`](super::liveness).

use super::{
    check::{fails, stuck},
    config::{Config, Failover},
    liveness,
    protocol::{
        FOR_A_CALLER, LAST_HOLDER, NO_OLD_OVER_NEW, NO_STALE_READ, NO_STALE_SET, NOT_TAKEN, ONE_HOLDER,
        ONLY_WHAT_STANDS, PRIVATE, STORED,
    },
    rules::{Broken, Rules},
    safety,
};

fn breaks(config: Config, rule: Broken, property: &str) {
    let config = Config { rules: Rules(Some(rule)), ..config };
    fails(&format!("{rule:?}"), config, property);
}

fn hangs(config: Config, rule: Broken) {
    let (stuck, _) = stuck(&Config { rules: Rules(Some(rule)), ..config });
    assert!(stuck > 0, "{rule:?}: every reader comes to rest without the rule");
}

#[test]
fn a_fill_needs_a_lease() {
    breaks(safety::small(), Broken::NoFence, NO_STALE_SET);
}

#[test]
fn an_invalidation_drops_the_lease() {
    breaks(safety::small(), Broken::InvalidateEntryOnly, NO_STALE_SET);
}

#[test]
fn a_fill_is_one_step() {
    breaks(safety::small(), Broken::CheckThenSet, NO_STALE_SET);
}

#[test]
fn ended_lease_is_not_extended() {
    breaks(safety::heartbeats(), Broken::ExtendRecreates, NO_STALE_SET);
}

/// A lease that is absent may have been dropped by an invalidation.
#[test]
fn absent_lease_permits_no_fill() {
    breaks(safety::small(), Broken::AbsenceFills, NO_STALE_SET);
}

#[test]
fn ended_lease_permits_a_fill() {
    breaks(safety::stall(), Broken::EndedLeaseFillsNot, LAST_HOLDER);
}

#[test]
fn ended_lease_that_is_not_taken_is_extended() {
    breaks(safety::stall(), Broken::EndedLeaseIsNotExtended, LAST_HOLDER);
}

#[test]
fn first_question_marks_an_ended_lease() {
    breaks(safety::stall(), Broken::EndedLeaseIsNotMarked, NOT_TAKEN);
}

#[test]
fn lease_is_not_marked_before_its_end() {
    breaks(safety::stall(), Broken::RunningLeaseIsMarked, NOT_TAKEN);
}

#[test]
fn marked_lease_is_taken_after_a_quarter_of_a_second() {
    breaks(safety::stall(), Broken::MarkIsNotWaitedFor, NOT_TAKEN);
}

/// The holder extends its lease after the mark, and the server stalls again at the next extension.
#[test]
fn extension_clears_the_mark() {
    breaks(safety::stall(), Broken::ExtensionKeepsMark, NOT_TAKEN);
}

/// The lease of a dead leader does not expire here.
#[test]
fn marked_lease_is_taken() {
    hangs(Config { expiry: false, ends: true, ..liveness::death() }, Broken::MarkedLeaseIsKept);
}

#[test]
fn invalidation_drops_an_ended_lease() {
    breaks(safety::stall(), Broken::InvalidationKeepsEndedLease, NO_STALE_SET);
}

#[test]
fn a_fill_shows_its_stamp() {
    breaks(safety::duplicate(), Broken::FenceByTokenOnly, NO_STALE_SET);
}

/// The release that follows a `get_or_lease` without a reply would release the lease of the second `get_or_lease`.
#[test]
fn every_lease_request_has_a_new_token() {
    breaks(Config { expiry: false, ..safety::loss() }, Broken::SameTokenRetry, ONE_HOLDER);
}

#[test]
fn only_the_holder_abandons() {
    breaks(Config { expiry: false, ..safety::loss() }, Broken::ForeignRelease, ONE_HOLDER);
}

#[test]
fn a_promote_names_its_marker() {
    breaks(safety::pass(), Broken::ReplaceWithoutId, NO_STALE_SET);
}

#[test]
fn a_promote_drops_the_lease() {
    breaks(safety::pass_joins(), Broken::ReplaceKeepsLease, NO_OLD_OVER_NEW);
}

#[test]
fn leader_drops_an_entry_that_the_store_has_lost() {
    breaks(safety::stale_if_error(), Broken::NoSeenAlive, ONLY_WHAT_STANDS);
}

#[test]
fn stale_if_error_needs_a_lease_that_is_still_held() {
    breaks(safety::stale_if_error(), Broken::NoHeldCheck, ONLY_WHAT_STANDS);
}

#[test]
fn poll_requests_the_lease() {
    hangs(liveness::death(), Broken::PollByGet);
}

#[test]
fn invalidation_stops_joins_in_its_own_process() {
    breaks(safety::joins(), Broken::NoForget, NO_STALE_READ);
}

#[test]
fn invalidation_stops_joins_after_the_store_executed_it() {
    breaks(safety::joins(), Broken::ForgetBeforeStore, NO_STALE_READ);
}

#[test]
fn invalidation_stops_joins_of_lookups() {
    breaks(safety::told(), Broken::LookupKept, NO_STALE_READ);
}

#[test]
fn invalidation_message_stops_joins_of_its_flight() {
    breaks(safety::told(), Broken::InvalidationIgnored, NO_STALE_READ);
}

#[test]
fn invalidation_message_stops_joins_of_all_earlier_work() {
    breaks(safety::told(), Broken::LookupsStayJoinable, NO_STALE_READ);
}

#[test]
fn private_response_is_not_shared() {
    breaks(safety::pass_joins(), Broken::PrivateShared, PRIVATE);
}

#[test]
fn private_response_is_not_stored() {
    breaks(safety::pass(), Broken::PrivateStored, PRIVATE);
}

#[test]
fn flight_without_callers_does_not_fetch() {
    breaks(safety::leave(), Broken::DesertedFlightLeads, FOR_A_CALLER);
}

/// The other process waits until the lease expires, which it does not do here.
#[test]
fn flight_without_callers_releases_its_grant() {
    hangs(liveness::leave(), Broken::DesertedFlightKeepsGrant);
}

/// The staged entry is missing if the server has refused its `SET`, or has evicted it.
#[test]
fn fill_without_its_staged_entry_is_not_stored() {
    breaks(safety::refusals(), Broken::MissingEntryStored, STORED);
}

#[test]
fn refused_fill_drops_the_lease() {
    hangs(liveness::refusals(), Broken::RefusedFillKeepsLease);
}

#[test]
fn fill_wakes_the_waiters() {
    hangs(liveness::wakes(), Broken::NoWake);
}

/// Not a rule of this crate, but a property of asynchronous replication (F10). An invalidation that is lost with its
/// primary is lost, so a fill that began before it is stored. Readers are served that entry until the end of its
/// retention, at most.
#[test]
fn failover_that_loses_an_invalidation_lets_an_old_fill_in() {
    fails("failover", Config { failover: Failover::LosesAnything, ..safety::small() }, NO_STALE_SET);
}
