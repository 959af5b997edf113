//! The rules as they are: nothing that must not happen does. Each configuration looks at some of what may go wrong, and
//! all its states are visited.

use super::{
    check::holds,
    config::{Config, Failover},
    protocol::{ALONE, FENCED, FORGIVES, GHOST, JOINED, MARKED, PROMOTED, WAITS},
};

fn check(config: Config, reached: &[&str]) {
    holds(config.name, config, reached);
}

/// Two processes that each ask once, a commit with its invalidation, a lease that runs out at any time.
pub(crate) fn small() -> Config {
    Config { name: "small", readers: vec![1, 1], asks: 1, commits: 1, expiry: true, ..Config::default() }
}

/// What leads extends, until it hears that it does not lead any more.
pub(crate) fn heartbeats() -> Config {
    Config { name: "heartbeats", heartbeats: true, ..small() }
}

/// One request arrives twice, the second time as late as it likes.
pub(crate) fn duplicate() -> Config {
    Config { name: "duplicate", duplicates: true, mishaps: 1, ..small() }
}

/// One request or answer is lost or late: the caller goes on without.
pub(crate) fn loss() -> Config {
    Config { name: "loss", losses: true, mishaps: 1, ..small() }
}

/// Readers of the process that invalidates share flights and lookups.
pub(crate) fn joins() -> Config {
    Config { name: "joins", readers: vec![2, 1], expiry: false, ..small() }
}

/// Readers of a process that hears of the invalidation by message.
pub(crate) fn told() -> Config {
    Config { name: "told", readers: vec![0, 2], asks: 3, stale: true, refresh: true, expiry: false, ..small() }
}

/// Stale entries stand in for fetches that fail.
pub(crate) fn stale_if_error() -> Config {
    Config { name: "stale if error", readers: vec![2, 1], stale: true, failures: true, expiry: false, ..small() }
}

/// Answers for one caller, markers that say so, and answers that end them.
pub(crate) fn pass() -> Config {
    Config { name: "pass", private: true, stale: true, ..small() }
}

/// The same among readers that share.
pub(crate) fn pass_joins() -> Config {
    Config { name: "pass, joins", readers: vec![2, 1], expiry: false, ..pass() }
}

/// The primary is lost at any time, with what the replica does not have; but an invalidation waits for the replica.
pub(crate) fn failover() -> Config {
    Config { name: "failover", failover: Failover::KeepsInvalidations, ..small() }
}

#[test]
fn a_lease_that_runs_out() {
    check(small(), &[WAITS, FENCED]);
}

#[test]
fn a_lease_that_is_extended() {
    check(heartbeats(), &[WAITS, FENCED]);
}

#[test]
fn a_request_that_arrives_twice() {
    check(duplicate(), &[WAITS, FENCED, GHOST]);
}

#[test]
fn a_request_that_is_lost() {
    check(Config { expiry: false, ..loss() }, &[WAITS, FENCED, GHOST, ALONE]);
}

#[test]
fn readers_that_share() {
    check(joins(), &[WAITS, FENCED, JOINED]);
}

#[test]
fn a_process_that_is_told() {
    check(told(), &[FENCED, JOINED]);
}

#[test]
fn stale_entries_instead_of_errors() {
    check(stale_if_error(), &[WAITS, FENCED, JOINED, FORGIVES]);
}

#[test]
fn answers_for_one_caller() {
    check(pass(), &[WAITS, FENCED, MARKED, PROMOTED]);
}

#[test]
fn answers_for_one_caller_among_those_who_share() {
    check(pass_joins(), &[WAITS, FENCED, JOINED, MARKED, PROMOTED]);
}

#[test]
fn two_invalidations() {
    check(Config { name: "two invalidations", commits: 2, ..small() }, &[WAITS, FENCED]);
}

#[test]
fn a_refresh_behind() {
    check(Config { name: "refresh", readers: vec![2, 1], stale: true, refresh: true, ..joins() }, &[WAITS, FENCED]);
}

#[test]
fn a_failover_that_keeps_invalidations() {
    check(failover(), &[WAITS, FENCED, GHOST]);
}

#[test]
fn wait_budgets() {
    let config = Config { name: "budgets", budgets: true, stale: true, ..joins() };
    check(config, &[WAITS, FENCED, JOINED, ALONE]);
}

#[test]
fn a_computation_that_is_dropped() {
    let config = Config { name: "cancel", cancels: true, mishaps: 1, expiry: false, ..small() };
    check(config, &[WAITS, FENCED, GHOST]);
}

/// Deeper ones: see the module's documentation.
mod large {
    use super::*;

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn two_questions_each_and_a_loss() {
        check(Config { name: "small, two questions, a loss", asks: 2, ..loss() }, &[WAITS, FENCED, GHOST, ALONE]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn two_duplicates() {
        check(Config { name: "two duplicates", mishaps: 2, ..duplicate() }, &[WAITS, FENCED, GHOST]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn a_duplicate_and_two_questions_each() {
        check(Config { name: "duplicate, two questions", asks: 2, ..duplicate() }, &[WAITS, FENCED, GHOST]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn a_duplicate_and_two_invalidations() {
        check(Config { name: "duplicate, two invalidations", commits: 2, ..duplicate() }, &[WAITS, FENCED, GHOST]);
    }

    /// Only of three can one be told twice while it waits, and compute for itself.
    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn two_invalidations_of_three_processes() {
        let config =
            Config { name: "two invalidations, three processes", readers: vec![1, 1, 1], commits: 2, ..joins() };
        check(config, &[WAITS, FENCED, ALONE]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn two_losses() {
        check(Config { name: "two losses", mishaps: 2, ..loss() }, &[WAITS, FENCED, GHOST, ALONE]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn a_loss_among_readers_that_share() {
        let config = Config { name: "loss, joins, told", readers: vec![0, 2], asks: 2, budgets: true, ..loss() };
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
    fn stale_entries_instead_of_errors_twice() {
        let config = Config { name: "stale if error, two questions", readers: vec![1, 1], asks: 2, ..stale_if_error() };
        check(config, &[WAITS, FENCED, FORGIVES]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn answers_for_one_caller_twice() {
        check(Config { name: "pass, two questions", asks: 2, ..pass() }, &[WAITS, FENCED, MARKED, PROMOTED]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn a_duplicate_among_answers_for_one_caller() {
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
    fn a_computation_that_is_dropped_by_one_of_those_who_share() {
        let config = Config { name: "cancel, joins", readers: vec![2, 1], cancels: true, mishaps: 1, ..joins() };
        check(config, &[WAITS, FENCED, JOINED, GHOST]);
    }
}
