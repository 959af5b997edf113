//! The helpers that start servers and record skipped tests.

use crate::support::{
    self, RedisServer, eventually,
    program::{program, text},
};
use std::env;
use tokio::process::Command;

/// Returns this test binary again, with one of its tests.
fn this_binary(test: &str) -> Command {
    let mut command = program(env::current_exe().expect("this binary has a path"));
    command.args(["--exact", test, "--nocapture"]).env_remove("STAMPEDE_SKIPS");
    command
}

#[tokio::test]
async fn named_server_that_does_not_run_is_explained() {
    for path in ["/nowhere/redis-server", "/bin/echo"] {
        let mut command = this_binary("harness::sentinel_starts_again_on_its_port");
        let output = support::program::run({
            command.env("STAMPEDE_REDIS_SERVER", path);
            command
        });
        let complaint = text(output.await.stderr);
        let named = format!("STAMPEDE_REDIS_SERVER is {path:?}, which is not the path of a redis-server");
        assert!(complaint.contains(&named), "{complaint}");
    }
}

/// Is skipped in a process of its own: see [`skipped_test_is_recorded_or_fails`].
#[tokio::test]
async fn test_that_is_skipped_on_demand() {
    if env::var_os(ON_DEMAND).is_some() {
        support::skip("the server lacks nothing");
    }
}

#[tokio::test]
async fn skipped_test_is_recorded_or_fails() {
    let test = "harness::test_that_is_skipped_on_demand";
    let mut command = this_binary(test);
    command.env(ON_DEMAND, "");
    let complaint = support::program::complaint(command, 101).await;
    assert!(complaint.contains("the server lacks nothing"), "{complaint}");

    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("skips");
    let mut command = this_binary(test);
    command.env(ON_DEMAND, "").env("STAMPEDE_SKIPS", &file);
    support::program::printed(command).await;
    let recorded = std::fs::read_to_string(file).expect("a record");
    assert_eq!(recorded, format!("servers::{test}: the server lacks nothing\n"));
}

#[tokio::test]
async fn sentinel_starts_again_on_its_port() {
    let master = RedisServer::start();
    let monitor = format!("sentinel monitor main 127.0.0.1 {} 1", master.port());
    let sentinel = RedisServer::sentinel(&[&monitor, "sentinel down-after-milliseconds main 1000"]);
    let port = || async {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg("main");
        let (_, port): (String, String) =
            command.query_async(&mut sentinel.connection().await).await.expect("it knows the master");
        port
    };
    assert_eq!(port().await, master.port().to_string());
    sentinel.restart().await;
    assert_eq!(port().await, master.port().to_string());
    sentinel.pause();
    sentinel.resume();
    sentinel.kill();
    let refused = async || sentinel.client().get_multiplexed_async_connection().await.is_err();
    eventually("the sentinel is gone", refused).await;
}

const ON_DEMAND: &str = "STAMPEDE_GUARD_SKIPS_A_TEST";
