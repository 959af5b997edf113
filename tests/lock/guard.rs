//! The guard under every recipe that its guarantees allow.

/// All of them: `name how to make it, at some servers`. `recipes!(m { .. })` is `m!` with these, after what is in braces.
macro_rules! recipes {
    ($then:ident $rest:tt) => {
        $then! { $rest
            set_px |_| SetPx;
            fused |_| Fused;
            set_membership |_| SetMembership::with_expiry();
            getset |_| GetSet::new();
            rename |_| Rename;
            watch |at| Watch::new(at.client());
            exists_setex |_| ExistsSetex;
            setnx_expire |at| SetnxExpire::new(at.client());
            redlock |at| Redlock::with(at.others()).server_timeout(30 * SECOND);
        }
    };
}

/// A module of tests for each recipe, one for each function in the braces.
macro_rules! cases {
    (in $name:ident { $($case:ident)* }) => {
        mod $name {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    super::$case(stringify!($name)).await;
                }
            )*
        }
    };
    ($cases:tt $($name:ident $make:expr;)*) => { $(cases! { in $name $cases })* };
}

mod fence;
mod herds;
mod leaders;

use crate::support::{Down, RedisServer, SECOND, eventually};
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use stampede_guard::{
    StampedeGuard,
    lock::{
        Counter, ExistsSetex, Fused, GetSet, LockErrorKind, Recipe, Redlock, Rename, SetMembership, SetPx, SetnxExpire,
        Watch,
    },
    store::LockedStore,
};
use std::{sync::OnceLock, time::Duration};

macro_rules! stores {
    ({} $($name:ident $make:expr;)*) => {
        const RECIPES: &[&str] = &[$(stringify!($name)),*];

        /// By the name of the recipe, which a process can tell another one.
        fn locked(recipe: &str, at: &At) -> LockedStore {
            match recipe {
                $(stringify!($name) => made(at, $make),)*
                _ => panic!("there is no recipe {recipe}"),
            }
        }
    };
}

recipes!(stores {});

fn made<R: Recipe>(at: &At, make: impl Fn(&At) -> R) -> LockedStore {
    LockedStore::new(at.client(), make(at)).expect("a crash frees it")
}

/// Where the servers are.
#[derive(Clone, Serialize, Deserialize)]
struct At {
    urls: [String; 3],
}

impl At {
    fn shared() -> Self {
        let servers = others();
        Self { urls: [RedisServer::shared(), &servers[0], &servers[1]].map(RedisServer::url) }
    }

    fn client(&self) -> redis::Client {
        redis::Client::open(self.urls[0].as_str()).expect("a client")
    }

    fn others(&self) -> [redis::Client; 2] {
        [1, 2].map(|n| redis::Client::open(self.urls[n].as_str()).expect("a client"))
    }
}

/// Besides the one that has the entries.
fn others() -> &'static [RedisServer; 2] {
    static OTHERS: OnceLock<[RedisServer; 2]> = OnceLock::new();
    OTHERS.get_or_init(|| [(); 2].map(|()| RedisServer::start()))
}

/// As if in processes of their own, and connected: a machine that is busy with other tests is no outage. `span` is how long
/// a lock lives without its holder.
async fn guards<const N: usize>(recipe: &str, namespace: &str, span: Duration) -> [StampedeGuard; N] {
    let at = At::shared();
    let guards = [(); N].map(|()| guard(recipe, &at, namespace, span));
    for guard in &guards {
        eventually("it is connected", async || {
            let fetches = (0..4).map(|key| {
                let fetch = async || Ok::<_, Down>(0);
                guard.fetch(format!("warm-up {key} of {guard:p}"), fetch)
            });
            join_all(fetches).await;
            guard.shutdown().await;
            guard.report().filled > 0
        })
        .await;
    }
    guards
}

fn guard(recipe: &str, at: &At, namespace: &str, span: Duration) -> StampedeGuard {
    let store = locked(recipe, at).hold(span);
    StampedeGuard::new(store).namespace(format!("{namespace}-{recipe}")).lease(span).op_timeout(30 * SECOND)
}

#[test]
fn a_recipe_that_a_crash_leaves_locked_is_refused() {
    let at = At { urls: ["redis://127.0.0.1:1"; 3].map(str::to_owned) };
    let refused = [LockedStore::new(at.client(), Counter), LockedStore::new(at.client(), SetMembership::default())]
        .map(|refused| {
            let error = refused.expect_err("a crash locks the others out for ever");
            assert_eq!(error.kind(), LockErrorKind::Recipe);
            error.to_string()
        });
    assert!(refused[0].contains("counter"), "{}", refused[0]);
    assert!(refused[1].contains("SetMembership::with_expiry()"), "{}", refused[1]);
}
