//! Users of Redis with the rights that src/guide/rights.md lists. The tests of `tools/lock-table` include this file.

use crate::{calls::command, support::RedisServer};

/// Returns the ACL rule of the docs for the cache, word by word.
pub(crate) fn documented() -> Vec<&'static str> {
    documented_for("app")
}

pub(crate) fn documented_for(user: &str) -> Vec<&'static str> {
    let (docs, rule) = (include_str!("../../src/guide/rights.md"), format!("ACL SETUSER {user} "));
    let line = docs.lines().find_map(|line| line.trim().strip_prefix(rule.as_str())).expect("a rule in the docs");
    line.split(' ').collect()
}

/// Creates the user with exactly these rules, and returns a client for it.
pub(crate) async fn app(server: &RedisServer, rules: &[&str]) -> redis::Client {
    command::<()>(server, &["ACL SETUSER app reset", &rules.join(" ")].join(" ")).await;
    redis::Client::open(format!("redis://app:secret@127.0.0.1:{}", server.port())).expect("a client")
}

/// Returns what the server refused to any user, except `CLIENT SETINFO` of redis-rs. Redis 6.2 logs it without its
/// subcommand, and Redis 7.0 not at all.
pub(crate) async fn refused(server: &RedisServer) -> Vec<String> {
    let log: Vec<std::collections::HashMap<String, redis::Value>> = command(server, "ACL LOG").await;
    let set_info = if RedisServer::is_older_than(7, 0) { "\"client\"" } else { "setinfo" };
    let what = log.iter().map(|entry| format!("{:?}", entry["object"])).filter(|what| !what.contains(set_info));
    what.collect()
}
