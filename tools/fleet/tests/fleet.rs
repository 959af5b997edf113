//! The examples, as programs.

use serde_json::Value;
use stampede_guard_support::program::{printed, program};

/// What the simulation of the fleet has printed, and its rows.
async fn fleet(args: &[&str]) -> (String, Vec<Value>) {
    let mut command = program(env!("CARGO_BIN_EXE_fleet"));
    command.args(args).arg("--json");
    let printed = printed(command).await;
    let (table, json) = printed.trim_end().rsplit_once('\n').expect("more than one line");
    let json: Value = serde_json::from_str(json).expect("the last line is JSON");
    (table.to_owned(), json["rows"].as_array().expect("rows").clone())
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("no number `{field}` in {row}"))
}

#[tokio::test]
async fn a_simulated_fleet_is_determined_by_its_seed() {
    let args = ["--processes", "3,20", "--seconds", "2", "--keys", "50", "--ttl", "1", "--near", "--early", "1"];
    let (_, first) = fleet(&args).await;
    let (_, second) = fleet(&args).await;
    let (_, other) = fleet(&[&args[..], &["--seed", "2"]].concat()).await;
    assert_eq!(first.len(), 2);
    assert_eq!(first, second);
    assert_ne!(first, other);
}

/// Seen to fail with leases that hold off no process.
#[tokio::test]
async fn a_simulated_fleet_computes_each_key_once_in_its_lifetime() {
    let args = ["--processes", "1,200", "--keys", "5", "--rate", "50", "--seconds", "4", "--cold"];
    for row in fleet(&[&args[..], &["--ttl", "3600"]].concat()).await.1 {
        assert_eq!(row["origin_calls"], 5, "{row}");
    }
    // An entry takes 50 ms to make and is fresh for one second afterwards.
    let (_, rows) = fleet(&[&args[..], &["--ttl", "1", "--jitter", "0", "--spread", "0"]].concat()).await;
    assert_eq!(rows[1]["origin_calls"], 5 * 4, "{}", rows[1]);
    assert!(number(&rows[1], "wakes_per_s") > 0.0, "{}", rows[1]);
}

#[tokio::test]
async fn a_simulated_fleet_of_hits_sends_one_command_per_request() {
    let args = ["--processes", "50", "--keys", "20", "--ttl", "1000000", "--seconds", "20"];
    let (_, rows) = fleet(&args).await;
    let (requests, commands) = (number(&rows[0], "requests_per_s"), number(&rows[0], "commands_per_s"));
    assert_eq!(number(&rows[0], "hit_ratio"), 1.0, "{}", rows[0]);
    assert!((commands / requests - 1.0).abs() < 0.01, "{}", rows[0]);
    let (_, near) = fleet(&[&args[..], &["--near"]].concat()).await;
    assert!(number(&near[0], "commands_per_s") < commands / 2.0, "{}", near[0]);
    assert!(number(&near[0], "near_hit_ratio") > 0.5, "{}", near[0]);
}

#[tokio::test]
async fn a_simulated_fleet_names_its_first_bottleneck() {
    let cases: [(&[&str], _, _); 3] = [
        (&["--processes", "10,200", "--rate", "500"], "first to give in: Redis, by its hits", " enough"),
        (&["--processes", "10,50", "--ttl", "0.5", "--workers", "5"], "first to give in: the origin", "--workers "),
        (&["--processes", "2,4", "--rate", "1"], "nothing gives in up to 4 processes", "--near"),
    ];
    for (args, first, remedy) in cases {
        let (table, _) = fleet(&[args, &["--seconds", "0.5"]].concat()).await;
        assert!(table.contains(first) && table.contains(remedy), "{args:?}:\n{table}");
    }
}
