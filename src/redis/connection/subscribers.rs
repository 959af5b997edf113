//! The subscribers of one store or lock client: none, one, or one at each master of a cluster.

#[cfg(feature = "cluster")]
use super::router::Router;
use super::subscriber::Subscriber;
use std::sync::Arc;

/// The subscribers of one store or lock client.
pub(crate) enum Subscribers {
    /// Without one waiters poll.
    One(Option<Arc<Subscriber>>),
    /// One at each master of a cluster, because a node passes messages on to other nodes late.
    #[cfg(feature = "cluster")]
    PerMaster(Arc<Router>),
}

impl Subscribers {
    /// Starts the subscriber that gets the messages about this name, and returns it.
    pub(crate) fn start(&self, name: impl FnOnce() -> String) -> Option<Arc<Subscriber>> {
        let _ = &name; // PERF: one server needs no name
        let subscriber = match self {
            Self::One(subscriber) => subscriber.clone(),
            #[cfg(feature = "cluster")]
            Self::PerMaster(router) => router.subscriber(name().as_bytes()),
        };
        subscriber.inspect(|subscriber| subscriber.start())
    }

    /// Reports whether messages about this name arrive, as [`Subscriber::is_live`] does. Starts their subscriber.
    pub(crate) async fn is_live(&self, name: &str) -> bool {
        match self.start(|| name.to_owned()) {
            Some(subscriber) => subscriber.is_live().await,
            None => false,
        }
    }

    /// Reports whether messages arrive now, from all servers that were needed. `None` if no subscriber can be made.
    pub(crate) fn is_up(&self) -> Option<bool> {
        let mut subscribers = match self {
            Self::One(subscriber) => vec![subscriber.clone()?],
            #[cfg(feature = "cluster")]
            Self::PerMaster(router) => router.subscribers(),
        };
        subscribers.retain(|subscriber| subscriber.is_started());
        Some(!subscribers.is_empty() && subscribers.iter().all(|subscriber| subscriber.is_up()))
    }
}
