//! The Lua scripts of the recipes that the [client](super::client) loads on each connection.

use crate::redis::connection::script::{Script, load};
use redis::Pipeline;
use std::sync::LazyLock;

pub(super) static QUEUE_ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(QUEUE_ACQUIRE_TEXT));
pub(super) static QUEUE_RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(QUEUE_RELEASE_TEXT));
pub(super) static TOKEN_RELEASE: LazyLock<Script> = LazyLock::new(|| Script::new(TOKEN_RELEASE_TEXT));
pub(super) static TOKEN_EXTEND: LazyLock<Script> = LazyLock::new(|| Script::new(TOKEN_EXTEND_TEXT));

/// Returns the commands that load these scripts and `more`.
pub(super) fn load_all(more: &[&'static str]) -> Pipeline {
    load(&[&[QUEUE_ACQUIRE_TEXT, QUEUE_RELEASE_TEXT, TOKEN_RELEASE_TEXT, TOKEN_EXTEND_TEXT], more].concat())
}

const QUEUE_ACQUIRE_TEXT: &str = concat!(include_str!("queue/hand_over.lua"), include_str!("queue/acquire.lua"));
const QUEUE_RELEASE_TEXT: &str = concat!(include_str!("queue/hand_over.lua"), include_str!("queue/release.lua"));
const TOKEN_RELEASE_TEXT: &str = include_str!("token_lock/release.lua");
const TOKEN_EXTEND_TEXT: &str = include_str!("token_lock/extend.lua");
