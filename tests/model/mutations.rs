//! The rules with one of them broken: the checker finds what it is for. The same configurations hold with all rules;
//! they are those of [`safety`](super::safety) and [`liveness`](super::liveness).

use super::{
    check::{fails, stuck},
    config::{Config, Failover},
    liveness,
    protocol::{NO_OLD_OVER_NEW, NO_STALE_READ, NO_STALE_SET, ONE_HOLDER, ONLY_WHAT_STANDS, PRIVATE},
    rules::{Broken, Rules},
    safety,
};

fn breaks(config: Config, rule: Broken, property: &str) {
    let config = Config { rules: Rules(Some(rule)), ..config };
    fails(&format!("{rule:?}"), config, property);
}

fn hangs(config: Config, rule: Broken) {
    let (stuck, _) = stuck(&Config { rules: Rules(Some(rule)), ..config });
    assert!(stuck > 0, "{rule:?}: everybody comes to rest all the same");
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
fn a_lease_that_is_gone_is_not_extended() {
    breaks(safety::heartbeats(), Broken::ExtendRecreates, NO_STALE_SET);
}

#[test]
fn a_fill_shows_its_stamp() {
    breaks(safety::duplicate(), Broken::FenceByTokenOnly, NO_STALE_SET);
}

/// The abandon that follows a lead without an answer would take the lease of the second one.
#[test]
fn every_lead_has_a_new_token() {
    breaks(Config { expiry: false, ..safety::loss() }, Broken::SameTokenRetry, ONE_HOLDER);
}

#[test]
fn only_the_holder_abandons() {
    breaks(Config { expiry: false, ..safety::loss() }, Broken::ForeignAbandon, ONE_HOLDER);
}

#[test]
fn a_promote_names_its_marker() {
    breaks(safety::pass(), Broken::PromoteWithoutId, NO_STALE_SET);
}

#[test]
fn a_promote_drops_the_lease() {
    breaks(safety::pass_joins(), Broken::PromoteKeepsLease, NO_OLD_OVER_NEW);
}

#[test]
fn a_leader_forgets_an_entry_that_is_gone() {
    breaks(safety::stale_if_error(), Broken::NoSeenAlive, ONLY_WHAT_STANDS);
}

#[test]
fn only_a_lease_that_is_held_vouches_for_the_entry() {
    breaks(safety::stale_if_error(), Broken::NoHeldCheck, ONLY_WHAT_STANDS);
}

#[test]
fn a_poll_asks_who_leads() {
    hangs(liveness::death(), Broken::PollByGet);
}

#[test]
fn an_invalidation_ends_joining_in_its_process() {
    breaks(safety::joins(), Broken::NoForget, NO_STALE_READ);
}

#[test]
fn it_ends_joining_after_the_store_has_done_it() {
    breaks(safety::joins(), Broken::ForgetBeforeStore, NO_STALE_READ);
}

#[test]
fn it_ends_joining_of_lookups() {
    breaks(safety::told(), Broken::LookupKept, NO_STALE_READ);
}

#[test]
fn a_process_that_is_told_ends_joining() {
    breaks(safety::told(), Broken::GoneIgnored, NO_STALE_READ);
}

#[test]
fn a_process_that_is_told_ends_joining_of_all_it_began() {
    breaks(safety::told(), Broken::GoneForItself, NO_STALE_READ);
}

#[test]
fn a_private_answer_is_not_handed_on() {
    breaks(safety::pass_joins(), Broken::PrivateShared, PRIVATE);
}

#[test]
fn a_private_answer_is_not_stored() {
    breaks(safety::pass(), Broken::PrivateStored, PRIVATE);
}

#[test]
fn a_fill_wakes_who_waits() {
    hangs(liveness::wakes(), Broken::NoWake);
}

/// Not a rule of ours, but what asynchronous replication does (F10): an invalidation that is lost with its primary is
/// lost, and a fill that began before it lands. What it stores is served until the end of its retention, at most.
#[test]
fn a_failover_that_loses_the_invalidation_lets_an_old_fill_land() {
    fails("failover", Config { failover: Failover::LosesAnything, ..safety::small() }, NO_STALE_SET);
}
