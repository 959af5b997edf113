//! A node of a cluster, and the connections to it.

use super::{
    reconnecting::Reconnecting,
    source::Source,
    subscriber::{MessageHandler, Subscriber},
};
use crate::sync::{mutex::Mutex, shared::WeakShared};
use redis::{Pipeline, RedisResult};
use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU16, AtomicU64},
};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
}

impl Address {
    /// Parses `host:port`. The host may be an IPv6 address without brackets. An empty one is `own_host`.
    pub(super) fn parse(text: &str, own_host: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = if host.is_empty() { own_host } else { host };
        Some(Self { host: host.to_owned(), port: port.parse().ok()? })
    }
}

/// A node, to which nothing connects before it is needed.
pub(super) struct Node {
    pub(super) address: Address,
    /// The id that the node has drawn, once a view has told it.
    pub(super) id: OnceLock<String>,
    /// The highest config epoch of the node in a view.
    pub(super) epoch: AtomicU64,
    /// The first slot that it has or had. PERF: each command asks for it.
    pub(super) first_slot: AtomicU16,
    pub(super) link: Arc<Reconnecting<Source>>,
    pub(super) subscriber: Arc<Subscriber>,
    /// The question to this node that is in flight.
    pub(super) question: Mutex<Option<WeakShared<RedisResult<()>>>>,
}

impl Node {
    pub(super) fn new(
        address: Address,
        source: Source,
        introduction: Arc<Pipeline>,
        handler: Arc<dyn MessageHandler>,
    ) -> Self {
        let source = source.to(address.host.clone(), address.port);
        let link = Arc::new(Reconnecting::new(Arc::new(source.clone()), introduction, source.log.clone()));
        let subscriber = Arc::new(Subscriber::new(source, link.clone(), handler));
        let (id, epoch, first_slot, question) = Default::default();
        Self { address, id, epoch, first_slot, link, subscriber, question }
    }

    pub(super) fn id(&self) -> Option<&str> {
        self.id.get().map(String::as_str)
    }
}
