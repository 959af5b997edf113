//! Fetches a value whose `Deserialize` trusts its data.

use serde::{Deserialize, Deserializer, Serialize};
use stampede_guard::StampedeGuard;
use std::convert::Infallible;

#[derive(Serialize)]
struct Year(u16);

impl<'de> Deserialize<'de> for Year {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let year = u16::deserialize(deserializer)?;
        assert!(year >= 1970, "{year} was never stored");
        Ok(Self(year))
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    runtime.block_on(async {
        let (guard, mut calls) = (StampedeGuard::in_memory(), 0);
        for _ in 0..2 {
            let fetch = async || {
                calls += 1;
                Ok::<_, Infallible>(Year(2026))
            };
            let year = guard.cache::<Year>("year").entry("k").fetch_scoped(fetch).await.expect("an answer");
            assert_eq!(year.0, 2026);
        }
        println!("alive after {calls} call");
    });
}
