//! The examples, as programs.

use serde_json::Value;
use stampede_guard_support::program::{complaint, printed, program, run, text};
use std::fs;
use tokio::process::Command;

fn lock_table(args: &[&str]) -> Command {
    let mut command = program(env!("CARGO_BIN_EXE_lock-table"));
    command.args(args);
    command
}

#[tokio::test]
async fn the_lock_table_has_a_row_per_recipe_and_client_count() {
    let directory = tempfile::tempdir().expect("a directory");
    let svg = directory.path().join("table.svg");
    let svg = svg.to_str().expect("UTF-8");
    let recipes = ["bare", "set-px", "fused", "exists-setex"];
    let args = ["--seconds", "0.3", "--clients", "1,3", "--recipes", &recipes.join(","), "--json", "--svg", svg];
    let printed = printed(lock_table(&args)).await;
    let (table, json) = printed.trim_end().rsplit_once('\n').expect("more than one line");
    let json: Value = serde_json::from_str(json).expect("the last line is JSON");
    assert_eq!(json.as_object().expect("an object").len(), recipes.len(), "{json}");
    for recipe in recipes {
        let cells = json[recipe].as_object().expect("an object");
        assert_eq!(cells.keys().collect::<Vec<_>>(), ["1", "3"], "{recipe}: {json}");
        for (clients, cell) in cells {
            assert_eq!(cell.as_object().map(serde_json::Map::len), Some(4), "{recipe}: {json}");
            let of = |what: &str| cell[what].as_u64().expect("a number");
            let (most, least, acquires) = (of("max_share"), of("min_share"), of("acquires"));
            assert!(acquires > 0 && of("tries") >= acquires && most >= least, "{recipe}: {json}");
            match &**clients {
                "1" => assert!(most == acquires && least == acquires, "{recipe}: {json}"),
                _ => assert!(most * 3 >= acquires && least * 3 <= acquires, "{recipe}: {json}"),
            }
        }
        assert_eq!(table.lines().filter(|line| line.starts_with(&format!("{recipe} "))).count(), 2, "{table}");
    }
    assert!(table.contains("book: exists-setex       1     44494     44494      4449"), "{table}");
    let drawn = fs::read_to_string(svg).expect("a picture");
    assert!(drawn.starts_with("<svg") && recipes.iter().all(|recipe| drawn.contains(recipe)), "{drawn}");
}

#[tokio::test]
async fn the_lock_table_fails_if_two_clients_hold_the_lock() {
    let output = run(lock_table(&["--seconds", "0.3", "--clients", "2", "--recipes", "none"])).await;
    let printed = text(output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("VIOLATION"), "{printed}");
}

#[tokio::test]
async fn the_lock_table_explains_arguments_that_it_cannot_use() {
    let cases = [
        (["--recipes", "fused,nonsense"], "there are bare, set-px, "),
        (["--clients", "1,0"], "0 is not in 1..=1000"),
        (["--seconds", "0"], "not between 0.1 and 3600 seconds"),
        (["--seconds", "long"], "not a number of seconds"),
        (["--delay", "soon"], "--delay"),
        (["--redis", "no url"], "--redis"),
    ];
    for (args, words) in cases {
        let complaint = complaint(lock_table(&args), 2).await;
        assert!(complaint.contains("error:") && complaint.contains(words), "{args:?}: {complaint}");
    }
}
