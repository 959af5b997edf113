//! The recipes of posts and books: the suite of `tests/lock`, their guarantees and their known failures.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

#[path = "../../../../tests/lock/answers.rs"]
mod answers;
mod cluster;
#[path = "../../../../tests/lock/crash.rs"]
mod crash;
mod faults;
#[path = "../../../../tests/lock/guarantees.rs"]
mod guarantees;
#[path = "../../../../tests/lock/kit.rs"]
mod kit;
#[path = "../../../../tests/lock/replies.rs"]
mod replies;
#[path = "../../../../tests/lock/site.rs"]
mod site;
#[path = "../../../../tests/lock/suite.rs"]
mod suite;
#[path = "../../../../tests/lock/table.rs"]
mod table;
#[path = "../../../../tests/lock/traffic.rs"]
mod traffic;

use lock_table::{
    Counter, ExistsSetex, GetSet, Guarantees, LabRecipe, Redlock, Rename, SetMembership, SetnxExpire, Watch,
};
use site::Subject;
use stampede_guard_support as support;
use support::SECOND;

/// The marks of its table in src/guide/locks.md.
const TABLE: &str = "guarantees of the others";

// Per recipe: its label in src/guide/locks.md, its number of servers, its guarantees, and how a lock is built with it.
lock_suite! {
    set_membership: "SetMembership", 1, SetMembership::default().guarantees(), |lock, _| lock.recipe(SetMembership::default());
    set_membership_with_expiry: "SetMembership::with_expiry()", 1, SetMembership::with_expiry().guarantees(),
        |lock, _| lock.recipe(SetMembership::with_expiry());
    counter: "Counter", 1, Counter.guarantees(), |lock, _| lock.recipe(Counter);
    getset: "GetSet", 1, GetSet::new().guarantees(), |lock, _| lock.recipe(GetSet::new());
    rename: "Rename", 1, Rename.guarantees(), |lock, _| lock.recipe(Rename);
    watch: "Watch", 1, Watch::new(nowhere()).guarantees(), |lock, site| lock.recipe(Watch::new(site.clients[0].clone()));
    exists_setex: "ExistsSetex", 1, ExistsSetex.guarantees(), |lock, _| lock.recipe(ExistsSetex);
    setnx_expire: "SetnxExpire", 1, SetnxExpire::new(nowhere()).guarantees(),
        |lock, site| lock.recipe(SetnxExpire::new(site.clients[0].clone()));
    redlock: "Redlock", 5, Redlock::with::<redis::Client>([]).guarantees(),
        |lock, site| lock.recipe(Redlock::with(site.servers[1..].to_vec()).server_timeout(5 * SECOND));
}

/// Returns a client that is not used.
fn nowhere() -> redis::Client {
    redis::Client::open("redis://127.0.0.1:1").expect("the URL is well-formed")
}
