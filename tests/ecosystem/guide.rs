//! Files that the guide shows whole, so that a reader can begin with a copy.

pub(crate) mod layers;
pub(crate) mod opentelemetry;
pub(crate) mod pool;

use crate::kit::{ask, at_rest, get, get_with, guard, site};
use axum::http::HeaderName;
use futures_util::future::join_all;
use layers::with_layers;
use stampede_guard_support::Origin;
use std::{fs, path::Path};

#[test]
fn the_guide_shows_the_tested_files() {
    let read = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a file");
    for (page, file) in [("layers", "layers"), ("observing", "opentelemetry"), ("redis", "pool")] {
        let (page, file) = (read(&format!("../../src/guide/{page}.md")), read(&format!("guide/{file}.rs")));
        let (_, code) = file.split_once("\n\n").expect("code after the comment of the file");
        let shown = page.split("```rust,ignore\n").nth(1).and_then(|rest| rest.split("```").next());
        assert_eq!(shown, Some(code.replace("pub(crate) ", "").as_str()));
    }
}

#[tokio::test]
async fn the_documented_stack_answers_a_herd_with_one_call() {
    let (guard, origin) = (guard(), Origin::gated());
    let site = with_layers(site(&origin, |_, n| format!("page {n}")), guard.clone());
    let asked: Vec<_> = (0..50).map(|_| tokio::spawn(ask(&site, get("/news")))).collect();
    origin.arrived(1).await;
    origin.open();
    for answer in join_all(asked).await {
        let answer = answer.expect("no panic");
        assert_eq!((answer.status, answer.text()), (200, "page 1"));
        assert_eq!(answer.header("x-request-id").len(), 36);
    }
    at_rest(&guard).await;
    let hit = ask(&site, get_with("/news", &[("x-request-id", "mine"), ("origin", "https://a.test")])).await;
    assert!(hit.is_hit() && origin.calls() == 1, "{hit:?}");
    let fields = [HeaderName::from_static("x-request-id"), HeaderName::from_static("access-control-allow-origin")];
    assert_eq!(fields.map(|name| hit.headers[name].clone()), ["mine", "*"]);
}
