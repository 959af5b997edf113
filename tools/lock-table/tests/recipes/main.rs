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

use lock_table::{Counter, ExistsSetex, GetSet, Rename, SetMembership, SetnxExpire, Watch};
use site::Subject;
use stampede_guard_support as support;

/// The marks of its table in docs/locks.md.
const TABLE: &str = "guarantees of the others";

// Per recipe: its label in docs/locks.md, its number of servers, and how a lock is built with it.
lock_suite! {
    set_membership: "SetMembership", 1, |lock, _| lock.recipe(SetMembership::default());
    set_membership_with_expiry: "SetMembership::with_expiry()", 1, |lock, _| lock.recipe(SetMembership::with_expiry());
    counter: "Counter", 1, |lock, _| lock.recipe(Counter);
    getset: "GetSet", 1, |lock, _| lock.recipe(GetSet::new());
    rename: "Rename", 1, |lock, _| lock.recipe(Rename);
    watch: "Watch", 1, |lock, site| lock.recipe(Watch::new(site.clients[0].clone()));
    exists_setex: "ExistsSetex", 1, |lock, _| lock.recipe(ExistsSetex);
    setnx_expire: "SetnxExpire", 1, |lock, site| lock.recipe(SetnxExpire::new(site.clients[0].clone()));
}
