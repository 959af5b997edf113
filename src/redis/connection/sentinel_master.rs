//! The source of connections to the master that sentinels name.

use super::{sentinel::Sentinels, sentinel_announcements::listen, supervise::KeptTask};
use redis::{Client, RedisResult};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

/// One source of connections to the master: it knows to which master its last connection leads.
pub(super) struct ToMaster {
    sentinels: Arc<Sentinels>,
    /// Follows the announcements of the sentinels from the first connection on. Shared by all connections of an endpoint.
    announcements: Arc<KeptTask>,
    /// Number of the master to which the last connection leads.
    connected: AtomicU64,
}

impl ToMaster {
    pub(super) fn of(sentinels: Sentinels) -> Self {
        Self { sentinels: Arc::new(sentinels), announcements: Arc::default(), connected: AtomicU64::default() }
    }

    /// Returns a client of the master, for a connection that is about to be made.
    pub(super) async fn client(&self) -> RedisResult<Client> {
        self.announcements.start(|| listen(self.sentinels.clone()));
        let (client, number) = self.sentinels.asked().await?;
        self.connected.store(number, Relaxed);
        Ok(client)
    }

    /// Reports whether the sentinels have named another master since the last connection. Returns `true` once per
    /// change.
    pub(super) fn is_superseded(&self) -> bool {
        let (named, connected) = (self.sentinels.master.borrow().number, self.connected.load(Relaxed));
        connected != 0 && connected != named && self.connected.swap(named, Relaxed) != named
    }

    /// Returns when the sentinels name another master than that of the last connection.
    pub(super) async fn moved(&self) {
        let connected = self.connected.load(Relaxed);
        let mut master = self.sentinels.master.subscribe();
        // Never an error, because the sender lives as long as `self`.
        let _ = master.wait_for(|master| master.number != connected).await;
    }
}

/// A clone has no connection yet.
impl Clone for ToMaster {
    fn clone(&self) -> Self {
        let (sentinels, announcements) = (self.sentinels.clone(), self.announcements.clone());
        Self { sentinels, announcements, connected: AtomicU64::default() }
    }
}
