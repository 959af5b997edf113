//! Servers as they are run: with access rights, passwords, TLS, too little memory, in a cluster, and in trouble.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

#[path = "../support/mod.rs"]
mod support;

mod acl;
mod addresses;
mod auth;
mod classes;
mod cluster;
mod eviction;
mod failover;
mod kit;
mod locks;
mod tls;

use support::{Down, MS, SECOND, never};
