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

use crate::support::{RedisServer, SECOND, eventually};
use serde::{Deserialize, Serialize};
use stampede_guard::{
    StampedeGuard,
    lock::{
        Counter, ExistsSetex, Fused, GetSet, LockErrorKind, Recipe, Redlock, Rename, SetMembership, SetPx, SetnxExpire,
        Watch,
    },
    store::{Address, Ask, Inbox, Lead, LockedStore, Store, Token},
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

/// As if in processes of their own. `span` is how long a lock lives without its holder.
async fn guards<const N: usize>(recipe: &str, namespace: &str, span: Duration) -> [StampedeGuard; N] {
    let stores = [(); N].map(|()| locked(recipe, &At::shared()).hold(span));
    for store in &stores {
        connected(store).await;
    }
    stores.map(|store| guard(store, recipe, namespace, span))
}

fn guard(store: LockedStore, recipe: &str, namespace: &str, span: Duration) -> StampedeGuard {
    StampedeGuard::new(store).namespace(format!("{namespace}-{recipe}")).lease(span).op_timeout(30 * SECOND)
}

/// Everything it needs is dialled, so that a machine that is busy with other tests is no outage, and no message is missed.
async fn connected(store: &LockedStore) {
    let at = Address::new("warm-up", 0, format!("{:?}", Token::unique(Inbox::unique())));
    let _listener = store.listen(&at);
    eventually("it is connected, and hears", async || {
        let [first, second] = [(); 2].map(|()| Token::unique(Inbox::unique()));
        let ask = |token| store.lead(&at, Ask { token, lease: 30 * SECOND, seen: None });
        let hears = ask(first).await.is_ok() && matches!(ask(second).await, Ok(Lead::Wait { registered: true, .. }));
        for token in [first, second] {
            let _ = store.abandon(&at, token, None).await;
        }
        hears
    })
    .await;
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
