//! The verbs beside invalidate, in the model of the [`protocol`](super::protocol): put, expire and refresh. Breaks one rule
//! at a time as well.

use super::{
    check::{fails, holds},
    config::{Config, Failover},
    protocol::{
        ALONE, CREATES_NOTHING, FENCED, FORGIVES, GHOST, JOINED, MARKED, NO_OLD_REFRESH, NO_STALE_READ, NO_STALE_SET,
        PROMOTED, WAITS,
    },
    rules::{Broken, Rules},
    safety::{self, small},
    state::Verb::{Expire, Invalidate, Put},
};

fn check(config: Config, reached: &[&str]) {
    holds(config.name, config, reached);
}

fn breaks(config: Config, rule: Broken, property: &str) {
    fails(&format!("{rule:?}"), Config { rules: Rules(Some(rule)), ..config }, property);
}

/// One process puts, and a reader in each asks.
fn put() -> Config {
    Config { name: "put", writers: vec![Put], expiry: false, ..small() }
}

/// The readers of the process that puts share flights.
fn put_joins() -> Config {
    Config { name: "put, joins", readers: vec![2], ..put() }
}

/// Two processes put.
fn puts() -> Config {
    Config { name: "put against put", readers: vec![0, 1], writers: vec![Put, Put], commits: 2, ..put() }
}

/// No process reads, and two requests arrive twice.
fn duplicated_puts() -> Config {
    Config { name: "put, duplicates", readers: vec![0, 0], duplicates: true, mishaps: 2, ..puts() }
}

/// No process reads, and two requests or replies are lost.
fn lost_puts() -> Config {
    Config { name: "put, losses", readers: vec![0, 0], losses: true, mishaps: 2, ..puts() }
}

/// One process expires. Stale entries stand in for fetches that fail.
fn expire() -> Config {
    Config { name: "expire", readers: vec![1, 1], writers: vec![Expire], ..safety::stale_if_error() }
}

/// The readers of the process that expires share flights.
fn expire_joins() -> Config {
    Config { name: "expire, joins", readers: vec![2], stale: false, failures: false, ..expire() }
}

/// A reader waits for the fetch of the process that expires.
fn expire_awaited() -> Config {
    Config { name: "expire, wait", stale: false, failures: false, ..expire() }
}

/// The readers hear of the expire by message.
fn expire_elsewhere() -> Config {
    Config { name: "expire elsewhere", writers: vec![Expire], ..safety::told() }
}

/// With hit-for-pass markers.
fn expire_marker() -> Config {
    Config { name: "expire, pass", writers: vec![Expire], ..safety::pass() }
}

/// One process refreshes, and the other reads.
fn refresh() -> Config {
    Config { name: "refresh", readers: vec![0, 1], refreshes: vec![1], ..small() }
}

/// Two callers of one process refresh, and one of another process.
fn refreshes() -> Config {
    Config { name: "refresh against refresh", readers: vec![0, 0], refreshes: vec![2, 1], expiry: false, ..refresh() }
}

/// The same against a put, whose lease is the first that they meet.
fn refreshes_and_put() -> Config {
    Config { name: "refresh against put", writers: vec![Put], commits: 2, ..refreshes() }
}

/// A refresh waits for the fetch of another process, and meets a put that was committed before its call.
fn refresh_and_puts() -> Config {
    let (readers, refreshes, writers) = (vec![1, 0], vec![0, 1], vec![Put, Put]);
    Config { name: "refresh against puts", readers, refreshes, writers, commits: 2, expiry: false, ..small() }
}

/// With hit-for-pass markers.
fn refresh_marker() -> Config {
    Config {
        name: "refresh, pass",
        private: true,
        readers: vec![0, 2],
        refreshes: vec![1, 1],
        expiry: false,
        ..refresh()
    }
}

/// One request or reply is lost.
fn lost_refresh() -> Config {
    Config { name: "refresh, loss", readers: vec![1], losses: true, mishaps: 2, expiry: false, ..refresh() }
}

#[test]
fn put_is_not_overtaken() {
    check(put(), &[WAITS, FENCED]);
}

#[test]
fn put_is_not_overtaken_in_a_shared_flight() {
    check(put_joins(), &[FENCED, JOINED]);
}

#[test]
fn put_is_not_overtaken_by_an_earlier_put() {
    check(puts(), &[WAITS, FENCED]);
}

#[test]
fn put_that_is_duplicated_overtakes_nothing() {
    check(duplicated_puts(), &[FENCED, GHOST]);
}

#[test]
fn put_that_is_not_acknowledged_becomes_an_invalidation() {
    check(lost_puts(), &[FENCED, GHOST]);
}

#[test]
fn put_against_expire_is_not_overtaken() {
    check(Config { name: "put against expire", writers: vec![Put, Expire], ..puts() }, &[WAITS, FENCED]);
}

#[test]
fn put_against_invalidate_is_not_overtaken() {
    check(Config { name: "put against invalidate", writers: vec![Put, Invalidate], ..puts() }, &[WAITS, FENCED]);
}

#[test]
fn expired_entry_is_not_served_as_fresh() {
    check(expire(), &[WAITS, FENCED, FORGIVES]);
}

#[test]
fn expired_entry_is_not_served_as_fresh_in_a_shared_flight() {
    check(expire_joins(), &[FENCED, JOINED]);
}

#[test]
fn expired_entry_is_not_served_as_fresh_to_a_waiter() {
    check(expire_awaited(), &[WAITS, FENCED]);
}

#[test]
fn expired_entry_is_refreshed_in_the_background() {
    let config = Config { name: "expire, refresh in the background", failures: false, refresh: true, ..expire() };
    check(config, &[WAITS, FENCED]);
}

#[test]
fn expire_drops_a_marker() {
    check(expire_marker(), &[WAITS, FENCED, MARKED, PROMOTED]);
}

#[test]
fn refresh_returns_no_value_from_before_its_call() {
    check(refresh(), &[WAITS]);
}

#[test]
fn refreshes_share_the_next_fetch() {
    check(Config { name: "refresh against refresh, one each", refreshes: vec![1, 1], ..refreshes() }, &[WAITS]);
}

#[test]
fn first_script_of_a_put_drops_the_entry() {
    breaks(put(), Broken::PutKeepsEntry, NO_STALE_READ);
}

#[test]
fn fill_of_a_put_needs_its_lease() {
    breaks(puts(), Broken::NoFence, NO_STALE_SET);
}

#[test]
fn fill_of_a_put_shows_its_stamp() {
    breaks(duplicated_puts(), Broken::FenceByTokenOnly, NO_STALE_SET);
}

#[test]
fn put_that_is_not_acknowledged_is_not_sent_again() {
    breaks(lost_puts(), Broken::PutIsSentAgain, NO_STALE_SET);
}

#[test]
fn put_stops_joins_in_its_own_process() {
    breaks(put_joins(), Broken::NoForget, NO_STALE_READ);
}

#[test]
fn put_stops_joins_after_its_first_script() {
    breaks(Config { readers: vec![2, 1], ..put_joins() }, Broken::ForgetBeforeStore, NO_STALE_READ);
}

#[test]
fn expire_drops_the_lease() {
    breaks(expire_awaited(), Broken::ExpireKeepsLease, NO_STALE_SET);
}

#[test]
fn expire_stops_joins_in_its_own_process() {
    breaks(expire_joins(), Broken::NoForget, NO_STALE_READ);
}

#[test]
fn expire_message_stops_joins_of_its_flight() {
    breaks(expire_elsewhere(), Broken::InvalidationIgnored, NO_STALE_READ);
}

/// The marker would keep its id, by which an earlier fetch replaces it.
#[test]
fn marker_that_is_expired_is_not_replaced() {
    breaks(expire_marker(), Broken::ExpireKeepsMarker, NO_STALE_SET);
}

#[test]
fn expire_creates_no_entry() {
    breaks(expire_awaited(), Broken::ExpireCreates, CREATES_NOTHING);
}

#[test]
fn entry_that_a_flight_waited_for_is_judged_after_an_expire() {
    breaks(expire_awaited(), Broken::AwaitedIsNotJudged, NO_STALE_READ);
}

/// A hit does not name the holder, whose fetch may have begun before the call as well.
#[test]
fn refresh_asks_for_the_holder_before_any_entry() {
    breaks(refreshes(), Broken::RefreshNamesOneHolder, NO_OLD_REFRESH);
}

#[test]
fn refresh_takes_no_entry_before_it_has_met_a_holder() {
    breaks(refresh(), Broken::RefreshTakesBeforeHolder, NO_OLD_REFRESH);
}

#[test]
fn refresh_takes_no_entry_of_the_first_holder() {
    breaks(refresh(), Broken::RefreshTakesFirstHolder, NO_OLD_REFRESH);
}

/// The value of a put may be older than the call, although its lease is newer.
#[test]
fn refresh_takes_no_entry_without_a_stamp() {
    breaks(refresh_and_puts(), Broken::RefreshTakesWithoutStamp, NO_OLD_REFRESH);
}

#[test]
fn refresh_joins_no_fetch_that_has_begun() {
    breaks(refreshes(), Broken::RefreshJoinsRunning, NO_OLD_REFRESH);
}

#[test]
fn refresh_joins_no_local_flight() {
    breaks(lost_refresh(), Broken::RefreshJoinsLocal, NO_OLD_REFRESH);
}

/// Larger configurations: see the module documentation of the crate.
mod large {
    use super::*;

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn put_whose_lease_expires() {
        check(Config { name: "put, expiry", expiry: true, ..put() }, &[WAITS, FENCED]);
        check(Config { name: "put against put, expiry", expiry: true, ..puts() }, &[WAITS, FENCED]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn put_that_is_duplicated_or_lost_and_a_reader() {
        check(Config { readers: vec![0, 1], mishaps: 1, ..duplicated_puts() }, &[WAITS, FENCED, GHOST]);
        check(Config { readers: vec![0, 1], mishaps: 1, ..lost_puts() }, &[WAITS, FENCED, GHOST]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn put_in_a_failover_that_keeps_invalidations() {
        let config = Config { name: "put, failover", failover: Failover::KeepsInvalidations, ..put() };
        check(config, &[WAITS, FENCED]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn put_among_readers_that_share_flights() {
        check(Config { readers: vec![2, 1], ..put_joins() }, &[WAITS, FENCED, JOINED]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn expire_among_readers_that_share_flights() {
        check(Config { readers: vec![2, 1], ..expire() }, &[WAITS, FENCED, JOINED, FORGIVES]);
        check(expire_elsewhere(), &[FENCED, JOINED]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn expire_against_invalidate() {
        let writers = vec![Invalidate, Expire];
        let config = Config { name: "expire against invalidate", writers, commits: 2, failures: false, ..expire() };
        check(config, &[WAITS, FENCED]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn expire_of_a_request_that_is_duplicated_or_lost() {
        let config = Config { name: "expire, duplicate", duplicates: true, mishaps: 1, ..expire_awaited() };
        check(config, &[WAITS, FENCED, GHOST]);
        let config = Config { name: "expire, loss", losses: true, mishaps: 1, ..expire_awaited() };
        check(config, &[WAITS, FENCED, GHOST, ALONE]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn refreshes_of_two_processes() {
        check(refreshes(), &[WAITS, JOINED]);
        check(refreshes_and_put(), &[WAITS, JOINED]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn refresh_with_private_responses() {
        check(refresh_marker(), &[WAITS, JOINED, MARKED, PROMOTED]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn refresh_without_the_store() {
        check(lost_refresh(), &[ALONE]);
    }

    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn refresh_against_puts() {
        check(refresh_and_puts(), &[WAITS, FENCED]);
    }

    /// The fetch of the other process began after the call of the first caller, and before that of the second.
    #[test]
    #[ignore = "minutes; run with --ignored"]
    fn refresh_shares_only_the_fetch_of_its_flight() {
        breaks(refreshes_and_put(), Broken::RefreshSharesFound, NO_OLD_REFRESH);
    }
}
