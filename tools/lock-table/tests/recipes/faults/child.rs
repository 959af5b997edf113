//! Holders and contenders in processes of their own, which can be killed.

use super::{held_back::HeldBack, lock};
use crate::{
    RECIPES,
    site::Site,
    support::{
        RedisServer, SECOND,
        child::{self, Env},
        processes::{self, Child},
    },
};
use redis::{AsyncConnectionConfig, Client};
use serde::{Deserialize, Serialize};
use stampede_guard::Lock;
use std::{future::pending, time::Duration};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Task {
    url: String,
    name: String,
    recipe: String,
    ttl: Duration,
    part: Part,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Part {
    /// Acquires the lock, and reports that it has it.
    Keep,
    /// Tries to acquire, and reports when it is about to send that command, which is held back.
    Stop { before: String },
}

impl Task {
    pub(super) fn new(server: &RedisServer, name: &str, recipe: &str, part: Part) -> Self {
        Self { url: server.url(), name: name.to_owned(), recipe: recipe.to_owned(), ttl: 60 * SECOND, part }
    }

    pub(super) fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Starts the child and waits for its report.
    pub(super) async fn started(&self) -> Child {
        let mut child = processes::spawn(1, "faults::child::part", self).remove(0);
        let () = child.result().await;
        child
    }

    fn lock(&self, lock: Lock, client: Client) -> Lock {
        let recipe = RECIPES.iter().find(|recipe| recipe.name == self.recipe).expect("it is listed");
        (recipe.make)(lock.ttl(self.ttl).wait(600 * SECOND), &Site::new(vec![client], String::new()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn part() {
    let Some(Env { task, .. }) = child::enabled::<Task>() else { return };
    let client = Client::open(&*task.url).expect("a URL");
    match &task.part {
        Part::Stop { before } => {
            let patient = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
            let connection = client.get_multiplexed_async_connection_with_config(&patient).await;
            let connection = HeldBack::on(connection.expect("the server is up"), before);
            let lock = task.lock(lock(connection.redis()), client);
            let trying = tokio::spawn(async move { lock.try_acquire(&task.name).await.map(drop) });
            connection.arrived().await;
            child::report(&());
            trying.await.expect("killed before it ends").expect("killed before it ends");
        }
        Part::Keep => {
            let _guard = task.lock(lock(client.clone()), client).acquire(&task.name).await.expect("in time");
            child::report(&());
            pending::<()>().await;
        }
    }
}
