//! I4, I5: from every state there is a path to rest, without any wait timeout. See [`stuck`](super::check::stuck).

use super::{
    check::{holds, stuck},
    config::Config,
    state::Verb,
};

fn once() -> Config {
    Config { readers: vec![1, 1], asks: 1, writers: vec![Verb::Invalidate], commits: 1, ..Config::default() }
}

/// Waiters do not poll and nothing is lost: wake-ups alone bring every reader to rest.
pub(crate) fn wakes() -> Config {
    Config { name: "wakes", wakes: true, failures: true, ..once() }
}

/// The same, and the server refuses to store entries.
pub(crate) fn refusals() -> Config {
    Config { name: "wakes, refusals", refusals: true, commits: 0, ..wakes() }
}

/// Any number of wake-ups is lost, and a leader dies. Polls and the end of the lease bring every reader to rest.
pub(crate) fn death() -> Config {
    Config { name: "death", deaths: true, mishaps: 1, expiry: true, failures: true, ..once() }
}

/// A caller leaves, and no lease expires: its flight releases a lease that is granted to it.
pub(crate) fn leave() -> Config {
    Config { name: "a caller leaves", leaves: true, mishaps: 1, commits: 0, ..once() }
}

fn comes_to_rest(config: Config) {
    let (stuck, states) = stuck(&config);
    assert_eq!(stuck, 0, "{}: number of states that cannot come to rest", config.name);
    // Two searches that share only the model agree on the number of states.
    assert_eq!(states, holds(config.name, config, &[]));
}

#[test]
fn wake_ups_suffice() {
    comes_to_rest(wakes());
}

#[test]
fn wake_ups_suffice_within_a_process() {
    comes_to_rest(Config { name: "wakes, joins", readers: vec![2, 1], commits: 0, ..wakes() });
}

#[test]
fn wake_ups_suffice_when_fills_are_refused() {
    comes_to_rest(refusals());
}

/// The waiters of a put wait for its fill, and those of an expire ask again.
#[test]
fn wake_ups_suffice_for_the_waiters_of_writers() {
    comes_to_rest(Config { name: "wakes, put", writers: vec![Verb::Put], ..wakes() });
    comes_to_rest(Config { name: "wakes, expire", writers: vec![Verb::Expire], ..wakes() });
}

#[test]
fn wake_ups_suffice_for_refreshes() {
    let config = Config { name: "wakes, refreshes", readers: vec![0, 0], commits: 0, ..wakes() };
    comes_to_rest(Config { refreshes: vec![2, 1], ..config.clone() });
    comes_to_rest(Config { refreshes: vec![1, 1], commits: 1, ..config });
}

/// Shows that polls are needed.
#[test]
fn lost_wake_up_hangs_a_waiter_that_does_not_poll() {
    let (stuck, _) = stuck(&Config { name: "wakes that are lost", losses: true, ..wakes() });
    assert!(stuck > 0);
}

#[test]
fn dead_leader_does_not_block_other_processes() {
    comes_to_rest(death());
}

/// The lease of the dead leader does not expire: other processes take it after its end.
#[test]
fn dead_leader_whose_lease_is_kept_does_not_block() {
    comes_to_rest(Config { name: "death, kept lease", expiry: false, ends: true, ..death() });
}

#[test]
fn lost_request_or_reply_does_not_block_readers() {
    comes_to_rest(Config { name: "a loss", commits: 0, losses: true, mishaps: 1, expiry: true, ..once() });
}

#[test]
fn caller_that_leaves_does_not_block_other_processes() {
    comes_to_rest(leave());
}

/// The process of an orphaned lease releases it before it expires.
#[test]
fn orphaned_lease_does_not_block_its_own_process() {
    let config = Config { name: "ghosts", readers: vec![2], commits: 0, losses: true, cancels: true, ..once() };
    comes_to_rest(Config { mishaps: 1, ..config });
}

#[test]
#[ignore = "minutes; run with --ignored"]
fn dead_leader_does_not_block_two_other_processes() {
    comes_to_rest(Config { name: "death of one of three", readers: vec![1, 1, 1], ..death() });
}
