//! With all rules, no forbidden state is reachable. Each configuration allows some of the possible faults, and all its
//! states are visited.

use super::{
    check::holds,
    config::{Config, Failover},
    protocol::{ALONE, FENCED, FORGIVES, GHOST, JOINED, LATE, MARKED, PROMOTED, REFUSED, SUCCEEDED, WAITS},
    state::Verb,
};

fn check(config: Config, reached: &[&str]) {
    holds(config.name, config, reached);
}

/// Two processes that each ask once, a commit with its invalidation, and a lease that may expire at any time.
pub(crate) fn small() -> Config {
    Config {
        name: "small",
        readers: vec![1, 1],
        asks: 1,
        writers: vec![Verb::Invalidate],
        commits: 1,
        expiry: true,
        ..Config::default()
    }
}

/// Leaders extend their lease until they learn that they have lost it.
pub(crate) fn heartbeats() -> Config {
    Config { name: "heartbeats", heartbeats: true, ..small() }
}

/// The server stalls, so that leases end although their leaders extend them.
pub(crate) fn stall() -> Config {
    Config { name: "stall", ends: true, expiry: false, ..heartbeats() }
}

/// One request arrives twice, the second time at any later moment.
pub(crate) fn duplicate() -> Config {
    Config { name: "duplicate", duplicates: true, mishaps: 1, ..small() }
}

/// One request or reply is lost or late, and its sender continues without it.
pub(crate) fn loss() -> Config {
    Config { name: "loss", losses: true, mishaps: 1, ..small() }
}

/// Readers of the process that invalidates share flights and lookups.
pub(crate) fn joins() -> Config {
    Config { name: "joins", readers: vec![2, 1], expiry: false, ..small() }
}

/// Readers of a process that learns of the invalidation by message.
pub(crate) fn told() -> Config {
    Config { name: "notified", readers: vec![0, 2], asks: 3, stale: true, refresh: true, expiry: false, ..small() }
}

/// Stale entries are served when fetches fail.
pub(crate) fn stale_if_error() -> Config {
    Config { name: "stale if error", readers: vec![2, 1], stale: true, failures: true, expiry: false, ..small() }
}

/// Responses for one caller, the hit-for-pass markers they leave, and responses that replace these markers.
pub(crate) fn pass() -> Config {
    Config { name: "pass", private: true, stale: true, ..small() }
}

/// The same among readers that share flights.
pub(crate) fn pass_joins() -> Config {
    Config { name: "pass, joins", readers: vec![2, 1], expiry: false, ..pass() }
}

/// The primary may fail at any time, and with it what the replica does not have. An invalidation waits for the replica.
pub(crate) fn failover() -> Config {
    Config { name: "failover", failover: Failover::KeepsInvalidations, ..small() }
}

/// The server refuses to store entries, and a fill is sent again after a lost reply.
pub(crate) fn refusals() -> Config {
    Config { name: "refusals", refusals: true, ..loss() }
}

/// Callers leave while their flights ask, wait or fetch.
pub(crate) fn leave() -> Config {
    Config { name: "a caller leaves", leaves: true, mishaps: 2, ..small() }
}

#[test]
fn safety_holds_when_a_lease_expires() {
    check(small(), &[WAITS, FENCED]);
}

#[test]
fn safety_holds_when_a_lease_is_extended() {
    check(heartbeats(), &[WAITS, FENCED]);
}

#[test]
fn safety_holds_when_the_server_stalls() {
    check(stall(), &[WAITS, FENCED, LATE, SUCCEEDED]);
}

#[test]
fn safety_holds_when_a_request_is_duplicated() {
    check(duplicate(), &[WAITS, FENCED, GHOST]);
}

#[test]
fn safety_holds_when_a_request_is_lost() {
    check(Config { expiry: false, ..loss() }, &[WAITS, FENCED, GHOST, ALONE]);
}

#[test]
fn safety_holds_when_readers_share_flights() {
    check(joins(), &[WAITS, FENCED, JOINED]);
}

#[test]
fn safety_holds_when_invalidations_arrive_by_message() {
    check(told(), &[FENCED, JOINED]);
}

#[test]
fn safety_holds_with_stale_if_error() {
    check(stale_if_error(), &[WAITS, FENCED, JOINED, FORGIVES]);
}

#[test]
fn safety_holds_with_private_responses() {
    check(pass(), &[WAITS, FENCED, MARKED, PROMOTED]);
}

#[test]
fn safety_holds_with_private_responses_to_shared_flights() {
    check(pass_joins(), &[WAITS, FENCED, JOINED, MARKED, PROMOTED]);
}

#[test]
fn safety_holds_with_two_invalidations() {
    check(Config { name: "two invalidations", commits: 2, ..small() }, &[WAITS, FENCED]);
}

#[test]
fn safety_holds_with_background_refresh() {
    check(Config { name: "refresh", readers: vec![2, 1], stale: true, refresh: true, ..joins() }, &[WAITS, FENCED]);
}

#[test]
fn safety_holds_in_a_failover_that_keeps_invalidations() {
    check(failover(), &[WAITS, FENCED, GHOST]);
}

#[test]
fn safety_holds_when_waiters_are_rejected() {
    let config = Config { name: "wait timeouts", wait_timeouts: true, stale: true, ..joins() };
    check(config, &[WAITS, FENCED, JOINED]);
}

#[test]
fn safety_holds_when_fills_are_refused() {
    check(Config { expiry: false, ..refusals() }, &[WAITS, FENCED, REFUSED]);
}

#[test]
fn safety_holds_when_a_caller_leaves() {
    check(leave(), &[WAITS, FENCED]);
}

#[test]
fn safety_holds_when_a_fetch_is_dropped() {
    let config = Config { name: "cancel", cancels: true, mishaps: 1, expiry: false, ..small() };
    check(config, &[WAITS, FENCED, GHOST]);
}

/// Larger configurations: see the module documentation.
mod large {
    use super::*;

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn two_asks_per_reader_and_a_loss() {
        check(Config { name: "small, two questions, a loss", asks: 2, ..loss() }, &[WAITS, FENCED, GHOST, ALONE]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn two_duplicates() {
        check(Config { name: "two duplicates", mishaps: 2, ..duplicate() }, &[WAITS, FENCED, GHOST]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn a_duplicate_and_two_asks_per_reader() {
        check(Config { name: "duplicate, two questions", asks: 2, ..duplicate() }, &[WAITS, FENCED, GHOST]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn a_duplicate_and_two_invalidations() {
        check(Config { name: "duplicate, two invalidations", commits: 2, ..duplicate() }, &[WAITS, FENCED, GHOST]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn two_invalidations_of_three_processes() {
        let config =
            Config { name: "two invalidations, three processes", readers: vec![1, 1, 1], commits: 2, ..joins() };
        check(config, &[WAITS, FENCED]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn two_losses() {
        check(Config { name: "two losses", mishaps: 2, ..loss() }, &[WAITS, FENCED, GHOST, ALONE]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn a_loss_among_readers_that_share_flights() {
        let config = Config { name: "loss, joins, notified", readers: vec![0, 2], asks: 2, ..loss() };
        check(config, &[WAITS, FENCED, JOINED, ALONE]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn three_processes() {
        let config = Config { name: "three processes", readers: vec![1, 1, 1], deaths: true, ..duplicate() };
        check(config, &[WAITS, FENCED, GHOST]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn stale_if_error_with_two_asks_per_reader() {
        let config = Config { name: "stale if error, two questions", readers: vec![1, 1], asks: 2, ..stale_if_error() };
        check(config, &[WAITS, FENCED, FORGIVES]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn private_responses_with_two_asks_per_reader() {
        check(Config { name: "pass, two questions", asks: 2, ..pass() }, &[WAITS, FENCED, MARKED, PROMOTED]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn a_duplicate_with_private_responses() {
        let config = Config { name: "pass, duplicate", duplicates: true, mishaps: 1, ..pass() };
        check(config, &[WAITS, FENCED, MARKED, PROMOTED, GHOST]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn a_failover_and_a_duplicate() {
        let config = Config { name: "failover, duplicate", duplicates: true, mishaps: 1, ..failover() };
        check(config, &[WAITS, FENCED, GHOST]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn a_dropped_fetch_of_a_shared_flight() {
        let config = Config { name: "cancel, joins", readers: vec![2, 1], cancels: true, mishaps: 1, ..joins() };
        check(config, &[WAITS, FENCED, JOINED, GHOST]);
    }
}
