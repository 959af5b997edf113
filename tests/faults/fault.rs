//! The faults: how each one is injected, and how it ends.

use crate::{
    MS, SECOND,
    support::relay::Mode,
    world::{LEASE, Role, World},
};
use std::time::Duration;
use tokio::{io::AsyncWriteExt, net::TcpStream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A fault of the network between guards and server.
    Network(Network),
    /// A fault of the server.
    Redis(Redis),
    /// A fault of another process, which leads the key or waits for it.
    Peer(Role, Signal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    Slow,
    TooSlow,
    Trickles,
    LosesReplies,
    ExecutesAndResets,
    Cut,
    Refuses,
    HalfOpen,
    ReordersConnections,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redis {
    Killed,
    Stopped,
    Flushed,
    ScriptsFlushed,
    ClientsKilled,
    SubscribersKilled,
    Paused,
    Asleep,
    Full,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Kill,
    Stop,
}

impl Fault {
    pub(crate) const ALL: [Self; 22] = [
        Self::Network(Network::Slow),
        Self::Network(Network::TooSlow),
        Self::Network(Network::Trickles),
        Self::Network(Network::LosesReplies),
        Self::Network(Network::ExecutesAndResets),
        Self::Network(Network::Cut),
        Self::Network(Network::Refuses),
        Self::Network(Network::HalfOpen),
        Self::Network(Network::ReordersConnections),
        Self::Redis(Redis::Killed),
        Self::Redis(Redis::Stopped),
        Self::Redis(Redis::Flushed),
        Self::Redis(Redis::ScriptsFlushed),
        Self::Redis(Redis::ClientsKilled),
        Self::Redis(Redis::SubscribersKilled),
        Self::Redis(Redis::Paused),
        Self::Redis(Redis::Asleep),
        Self::Redis(Redis::Full),
        Self::Peer(Role::Leads, Signal::Kill),
        Self::Peer(Role::Leads, Signal::Stop),
        Self::Peer(Role::Waits, Signal::Kill),
        Self::Peer(Role::Waits, Signal::Stop),
    ];

    /// Returns its name in the table of docs/lab/faults.md.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Network(Network::Slow) => "network: 40 ms each way",
            Self::Network(Network::TooSlow) => "network: 400 ms each way",
            Self::Network(Network::Trickles) => "network: 16 bytes per ms",
            Self::Network(Network::LosesReplies) => "network: executed, replies lost",
            Self::Network(Network::ExecutesAndResets) => "network: executed, reset once",
            Self::Network(Network::Cut) => "network: connections cut",
            Self::Network(Network::Refuses) => "network: cut, reconnects reset",
            Self::Network(Network::HalfOpen) => "network: half-open",
            Self::Network(Network::ReordersConnections) => "network: cut, reconnects in reverse",
            Self::Redis(Redis::Killed) => "redis: SIGKILL, then restarted",
            Self::Redis(Redis::Stopped) => "redis: SIGSTOP",
            Self::Redis(Redis::Flushed) => "redis: FLUSHALL",
            Self::Redis(Redis::ScriptsFlushed) => "redis: SCRIPT FLUSH",
            Self::Redis(Redis::ClientsKilled) => "redis: CLIENT KILL, data",
            Self::Redis(Redis::SubscribersKilled) => "redis: CLIENT KILL, pub/sub",
            Self::Redis(Redis::Paused) => "redis: CLIENT PAUSE",
            Self::Redis(Redis::Asleep) => "redis: DEBUG SLEEP",
            Self::Redis(Redis::Full) => "redis: CONFIG SET maxmemory",
            Self::Peer(Role::Leads, Signal::Kill) => "leader: SIGKILL",
            Self::Peer(Role::Leads, Signal::Stop) => "leader: SIGSTOP beyond its lease",
            Self::Peer(Role::Waits, Signal::Kill) => "waiter: SIGKILL",
            Self::Peer(Role::Waits, Signal::Stop) => "waiter: SIGSTOP",
        }
    }

    pub(crate) fn is_of_network(self) -> bool {
        matches!(self, Self::Network(_))
    }

    /// Returns the role of the faulty process, or `None` if the fault is not of a process.
    pub(crate) fn peer(self) -> Option<Role> {
        if let Self::Peer(role, _) = self { Some(role) } else { None }
    }

    /// Returns how long the fault lasts. Zero means a single event.
    pub(crate) fn lasts(self) -> Duration {
        match self {
            Self::Network(Network::ExecutesAndResets | Network::Cut)
            | Self::Redis(Redis::Flushed | Redis::ScriptsFlushed | Redis::ClientsKilled | Redis::SubscribersKilled)
            | Self::Peer(_, Signal::Kill) => Duration::ZERO,
            Self::Peer(Role::Leads, Signal::Stop) => LEASE + 300 * MS,
            _ => 1200 * MS,
        }
    }

    pub(crate) async fn strike(self, world: &World) {
        match self {
            Self::Network(network) => network.strike(world),
            Self::Redis(redis) => redis.strike(world, self.lasts()).await,
            Self::Peer(_, signal) => {
                let mut peer = world.peer.lock().await;
                let peer = peer.as_mut().expect("a fault of a peer has a peer");
                match signal {
                    Signal::Kill => peer.kill().await,
                    Signal::Stop => peer.pause(),
                }
            }
        }
    }

    /// Ends the fault, and returns when it is over.
    pub(crate) async fn heal(self, world: &World) {
        match self {
            Self::Network(_) => world.relay.set(Mode::Pass),
            Self::Redis(Redis::Killed) => world.server.restart().await,
            Self::Redis(Redis::Stopped) => world.server.resume(),
            Self::Redis(Redis::Paused | Redis::Asleep) => world.tell(&["PING"]).await,
            Self::Redis(Redis::Full) => world.tell(&["CONFIG", "SET", "maxmemory", "0"]).await,
            Self::Redis(_) => {}
            Self::Peer(_, signal) => {
                let peer = world.peer.lock().await.take();
                let mut peer = peer.expect("a fault of a peer has a peer");
                if signal == Signal::Stop {
                    // The process resumes where it stopped. A leader then fills late.
                    peer.resume();
                    peer.go().await;
                    peer.passed().await;
                }
            }
        }
    }
}

impl Network {
    fn strike(self, world: &World) {
        let relay = &world.relay;
        match self {
            Self::Slow => relay.set(Mode::Delay(40 * MS)),
            Self::TooSlow => relay.set(Mode::Delay(400 * MS)),
            Self::Trickles => relay.set(Mode::Trickle),
            Self::LosesReplies => relay.set(Mode::NoReplies),
            Self::ExecutesAndResets => relay.lose_replies(1),
            Self::Cut => relay.cut(),
            Self::Refuses => {
                relay.set(Mode::Refuse);
                relay.cut();
            }
            Self::HalfOpen => relay.set(Mode::HalfOpen),
            Self::ReordersConnections => {
                relay.set(Mode::LastFirst);
                relay.cut();
            }
        }
    }
}

impl Redis {
    async fn strike(self, world: &World, lasts: Duration) {
        match self {
            Self::Killed => world.server.kill(),
            Self::Stopped => world.server.pause(),
            Self::Flushed => world.tell(&["FLUSHALL"]).await,
            Self::ScriptsFlushed => world.tell(&["SCRIPT", "FLUSH"]).await,
            Self::ClientsKilled => world.tell(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]).await,
            Self::SubscribersKilled => world.tell(&["CLIENT", "KILL", "TYPE", "pubsub"]).await,
            Self::Paused => world.tell(&["CLIENT", "PAUSE", &lasts.as_millis().to_string(), "ALL"]).await,
            Self::Asleep => {
                // The reply arrives only when the sleep is over, so it is not awaited.
                let mut socket =
                    TcpStream::connect(("127.0.0.1", world.server.port())).await.expect("the server is up");
                let command = format!("DEBUG SLEEP {}\r\n", lasts.div_duration_f64(SECOND));
                socket.write_all(command.as_bytes()).await.expect("the server is up");
            }
            Self::Full => world.tell(&["CONFIG", "SET", "maxmemory", "1"]).await,
        }
    }
}
