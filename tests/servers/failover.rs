//! A master is replaced by its replica, and the name of the service follows it.

use crate::{
    Down, SECOND,
    kit::{calls_of_a_herd, command, hits, patient, recovers, replicate},
    never,
    support::{CLOSED_PORT, RedisServer, eventually},
};
use futures_util::FutureExt;
use stampede_guard::{NearCacheConfig, StampedeGuard};
use std::{
    collections::VecDeque,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU16, Ordering::SeqCst},
    },
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// A host name: new connections go to its current target, and open connections stay with the old one.
pub(crate) struct Name {
    port: u16,
    leads_to: Arc<AtomicU16>,
    next: Arc<Mutex<VecDeque<u16>>>,
    hung: watch::Sender<Option<usize>>,
    _tasks: JoinSet<()>,
}

impl Name {
    pub(crate) async fn of(server: &RedisServer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let (port, leads_to) = (listener.local_addr().expect("an address").port(), Arc::new(server.port().into()));
        let next = Arc::<Mutex<VecDeque<u16>>>::default();
        let (target, exceptions, mut tasks) = (Arc::<AtomicU16>::clone(&leads_to), next.clone(), JoinSet::new());
        let hung = watch::Sender::new(None);
        let hangs = hung.subscribe();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut client, _)) = listener.accept().await {
                let exception = exceptions.lock().expect("no panic").pop_front();
                let port = exception.unwrap_or_else(|| target.load(SeqCst));
                let (mut hangs, number) = (hangs.clone(), connections.len());
                connections.spawn(async move {
                    if let Ok(mut server) = TcpStream::connect(("127.0.0.1", port)).await {
                        let hangs = hangs.wait_for(|hung| *hung == Some(number)).map(drop);
                        tokio::select! {
                            _ = copy_bidirectional(&mut client, &mut server) => {}
                            () = hangs => pending().await,
                        }
                    }
                });
            }
        });
        Self { port, leads_to, next, hung, _tasks: tasks }
    }

    /// The next connections go to these servers, one after the other.
    pub(crate) fn next_lead_to(&self, servers: &[&RedisServer]) {
        self.next.lock().expect("no panic").extend(servers.iter().map(|server| server.port()));
    }

    pub(crate) fn follow(&self, server: &RedisServer) {
        self.leads_to.store(server.port(), SeqCst);
    }

    /// The connection with this number passes nothing on any more. It stays open.
    pub(crate) fn hang(&self, number: usize) {
        self.hung.send_replace(Some(number));
    }

    pub(crate) fn client(&self) -> redis::Client {
        redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).expect("a client")
    }

    fn guard(&self) -> StampedeGuard {
        patient(self.client())
    }
}

/// Starts a master with a replica, two guards that connect by name, and the entry `kept` on both servers.
async fn pair(args: &[&str]) -> (RedisServer, RedisServer, Name, [StampedeGuard; 2]) {
    let (master, replica) = (RedisServer::with(args), RedisServer::start());
    replicate(&replica, &master, master.port()).await;
    let name = Name::of(&master).await;
    let guards = [(); 2].map(|()| name.guard());
    calls_of_a_herd(&guards, "kept").await;
    eventually("the replica has the entry", async || command::<i64>(&replica, "EXISTS {sg:rkept}:v3.2").await == 1)
        .await;
    (master, replica, name, guards)
}

async fn is_as_before(guards: &[StampedeGuard; 2]) {
    for guard in guards {
        recovers(guard).await;
        assert_eq!(guard.fetch("kept", never::<i32>).await.expect("a hit"), 1);
    }
    assert_eq!(calls_of_a_herd(guards, "after").await, 1);
    assert!(hits(&guards[0], "after").await);
}

#[tokio::test]
async fn a_master_that_dies_is_replaced() {
    let (master, replica, name, guards) = pair(&[]).await;
    master.kill();
    command::<()>(&replica, "REPLICAOF NO ONE").await;
    calls_of_a_herd(&guards, "between").await;
    name.follow(&replica);
    is_as_before(&guards).await;
}

/// Connections to the old master stay open, but it refuses writes.
///
/// Seen to fail if connections to a demoted master are kept.
#[tokio::test]
async fn a_master_that_becomes_a_replica_is_replaced() {
    let (master, replica, name, guards) = pair(&[]).await;
    command::<()>(&replica, "REPLICAOF NO ONE").await;
    name.follow(&replica);
    command::<()>(&master, &format!("REPLICAOF 127.0.0.1 {}", replica.port())).await;
    calls_of_a_herd(&guards, "between").await;
    is_as_before(&guards).await;
}

/// The old master becomes a replica without a master: it serves no request and sends no wake-ups.
///
/// Seen to fail if connections to the old master are kept, and on Redis 6.2 if the subscriber relies on `PING`, which an
/// orphaned replica answers there.
#[tokio::test]
async fn master_that_becomes_an_orphaned_replica_is_replaced() {
    let (master, replica, name, guards) = pair(&["--replica-serve-stale-data", "no"]).await;
    command::<()>(&replica, "REPLICAOF NO ONE").await;
    name.follow(&replica);
    command::<()>(&master, &format!("REPLICAOF 127.0.0.1 {CLOSED_PORT}")).await;
    calls_of_a_herd(&guards, "between").await;
    is_as_before(&guards).await;
    eventually("both guards subscribe at the new master", async || {
        command::<String>(&replica, "CLIENT LIST TYPE pubsub").await.lines().count() == 2
    })
    .await;
}

/// The old master is cut off: it answers every command, but what happens at the new master does not reach it.
///
/// Seen to fail if the subscriber checks its connection by PING alone.
#[tokio::test]
async fn subscriber_leaves_a_master_that_hears_nothing() {
    let (master, replica, name, guards) = pair(&[]).await;
    command::<()>(&replica, "REPLICAOF NO ONE").await;
    name.follow(&replica);
    command::<()>(&master, "CLIENT KILL TYPE normal").await;
    is_as_before(&guards).await;
    eventually("both guards subscribe at the new master", async || {
        command::<String>(&replica, "CLIENT LIST TYPE pubsub").await.lines().count() == 2
    })
    .await;
}

/// The old master still answers reads on open connections, but its data is old.
///
/// Seen to fail if the connection that reads the copies is kept.
#[tokio::test]
async fn a_near_cache_reads_from_the_new_master() {
    let (master, replica, name, _) = pair(&[]).await;
    let guard = name.guard().near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(SECOND));
    assert!(hits(&guard, "kept").await);
    command::<()>(&replica, "REPLICAOF NO ONE").await;
    name.follow(&replica);
    command::<()>(&master, &format!("REPLICAOF 127.0.0.1 {CLOSED_PORT}")).await;
    eventually("an invalidation is acknowledged", async || guard.invalidate("kept").await.is_ok()).await;
    for _ in 0..3 {
        assert_eq!(guard.fetch("kept", async || Ok::<_, Down>(2)).await.expect("an answer"), 2);
        guard.drain().await;
    }
}
