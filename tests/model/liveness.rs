//! I4, I5: from every state there is a way to rest, without any wait budget. See [`stuck`](super::check::stuck).

use super::{
    check::{holds, stuck},
    config::Config,
};

fn once() -> Config {
    Config { readers: vec![1, 1], asks: 1, commits: 1, ..Config::default() }
}

/// Nobody polls, and nothing is lost: wake-ups alone bring everybody to rest.
pub(crate) fn wakes() -> Config {
    Config { name: "wakes", wakes: true, failures: true, ..once() }
}

/// Wake-ups are lost, all of them if need be, and a leader dies. Polls and the end of the lease are what is left.
pub(crate) fn death() -> Config {
    Config { name: "death", deaths: true, mishaps: 1, expiry: true, failures: true, ..once() }
}

fn comes_to_rest(config: Config) {
    let (stuck, states) = stuck(&config);
    assert_eq!(stuck, 0, "{}: so many states cannot come to rest", config.name);
    // Two searches that share nothing but the model agree on how many states there are.
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

/// Else polls would not be needed.
#[test]
fn a_lost_wake_up_hangs_whoever_does_not_poll() {
    let (stuck, _) = stuck(&Config { name: "wakes that are lost", losses: true, ..wakes() });
    assert!(stuck > 0);
}

#[test]
fn a_dead_leader_keeps_nobody() {
    comes_to_rest(death());
}

#[test]
fn a_loss_keeps_nobody() {
    comes_to_rest(Config { name: "a loss", commits: 0, losses: true, mishaps: 1, expiry: true, ..once() });
}

/// A lease that nobody of its process knows any more is given back by that process, before it runs out.
#[test]
fn a_ghost_keeps_nobody_of_its_process() {
    let config = Config { name: "ghosts", readers: vec![2], commits: 0, losses: true, cancels: true, ..once() };
    comes_to_rest(Config { mishaps: 1, ..config });
}

#[test]
#[ignore = "minutes; run with --ignored"]
fn a_dead_leader_keeps_none_of_two() {
    comes_to_rest(Config { name: "death of one of three", readers: vec![1, 1, 1], ..death() });
}
