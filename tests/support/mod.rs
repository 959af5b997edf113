//! What the integration tests stand on: a real Redis, an origin that counts, herds, and processes of their own.
//!
//! Nothing here skips: what a test needs and the machine lacks is a panic that says so.
#![allow(dead_code, unused_imports, reason = "every test binary uses a part of it")]

pub(crate) mod child;
pub(crate) mod processes;
pub(crate) mod relay;

mod down;
mod eventually;
mod example;
mod herd;
mod monitor;
mod origin;
mod redis_server;
mod signal;

pub(crate) use self::{
    down::{Down, MS, SECOND, never},
    eventually::eventually,
    example::example,
    herd::herd,
    monitor::{Command, Monitor},
    origin::Origin,
    redis_server::{RedisServer, free_port},
    relay::Relay,
    signal::signal,
};
