//! Redis as production runs it: with ACLs, passwords, TLS, too little memory, in a cluster, and with server
//! errors.
#![cfg(all(
    feature = "axum",
    feature = "bincode",
    feature = "cluster",
    feature = "connection-manager",
    feature = "lock",
    feature = "sentinel",
    feature = "testing",
    feature = "tls-rustls",
    feature = "tracing",
    feature = "unstable"
))]
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

mod acl;
mod addresses;
mod auth;
mod calls;
mod classes;
mod cluster;
mod codec;
mod events;
mod eviction;
mod failover;
mod faults;
mod harness;
mod kit;
mod load;
mod locks;
mod log_lines;
mod managed;
mod pair;
mod replica;
mod replication;
mod rights;
mod sentinel;
mod settings;
mod staging;
mod tls;

use stampede_guard_support as support;
use support::{Down, MS, SECOND, never};
