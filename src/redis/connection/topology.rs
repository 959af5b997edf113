//! The master of each slot of a cluster, from what its nodes say (`CLUSTER NODES`). Connects to nothing, and the clock is
//! a parameter.
//!
//! Each node has a view of its own, and some are old: a master that is cut off from its cluster goes on to name itself,
//! and serves the values of before for a while. So **a slot never goes back**: a view moves it only to a master whose
//! config epoch is not lower than the one of its present master. A present master that disowns the slot is believed as
//! well. A view without any known node is that of another cluster, at an address that was used before.

use super::{
    reconnecting::Reconnecting,
    source::Source,
    subscriber::{MessageHandler, Subscriber},
};
use crate::{
    clock::Timestamp,
    redis::names::SLOTS,
    sync::{mutex::Mutex, shared::WeakShared},
};
use redis::{Client, ConnectionAddr, ConnectionInfo, ErrorKind, Pipeline, RedisError, RedisResult};
use std::{
    collections::{HashMap, HashSet},
    ops::RangeInclusive,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU16, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// The nodes of a cluster that the user names, and how to connect to all nodes: like to the first one.
#[derive(Clone)]
pub(super) struct Seeds {
    addresses: Arc<[Address]>,
    /// With TLS nodes are connected to by their host names, if they announce any.
    by_hostname: bool,
    pub(super) source: Source,
}

impl Seeds {
    pub(super) fn of(infos: &[ConnectionInfo]) -> RedisResult<Self> {
        let address = |info: &ConnectionInfo| match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                Ok(Address { host: host.clone(), port: *port })
            }
            _ => Err(RedisError::from(NO_ADDRESS)),
        };
        let access = |info: &ConnectionInfo| {
            let settings = info.redis_settings();
            let is_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
            (is_tls, settings.username().map(str::to_owned), settings.password().map(str::to_owned))
        };
        let first = infos.first().ok_or(NO_NODES)?;
        if infos.iter().any(|info| access(info) != access(first)) {
            return Err(DIFFERENT_NODES.into());
        }
        Ok(Self {
            addresses: infos.iter().map(address).collect::<RedisResult<_>>()?,
            by_hostname: access(first).0,
            source: Source::of_cluster(Client::open(first.clone())?, infos.iter().map(ConnectionInfo::addr)),
        })
    }
}

/// The masters of all slots, and the nodes that can be asked for them.
pub(super) struct Topology {
    seeds: Arc<[Address]>,
    by_hostname: bool,
    /// Makes a node, to which nothing connects before it is needed.
    make: Box<dyn Fn(Address) -> Arc<Node> + Send + Sync>,
    /// The nodes of the last view, the nodes that the user has named, and all masters, by each of their addresses.
    nodes: HashMap<Address, Arc<Node>>,
    /// The master of each slot.
    owners: Box<[Option<Arc<Node>>]>,
    /// The masters that have slots, in the order of their first slots. PERF: each command asks for them.
    masters: Vec<Arc<Node>>,
    /// The time since which views name masters with lower epochs, or no known node.
    strange_since: Option<Timestamp>,
}

/// A master, as a view describes it: its config epoch and its slots.
type Claim = (Arc<Node>, u64, Vec<RangeInclusive<u16>>);

/// A node, as a view describes it.
struct Described<'a> {
    id: &'a str,
    /// The one to connect to comes first.
    addresses: Vec<Address>,
    is_author: bool,
    is_master: bool,
    epoch: u64,
    slots: Vec<RangeInclusive<u16>>,
}

impl Topology {
    /// Begins with the nodes that the user names. No slot has a master.
    pub(super) fn new(seeds: Seeds, introduction: Arc<Pipeline>, handler: Arc<dyn MessageHandler>) -> Self {
        let Seeds { addresses: seeds, by_hostname, source } = seeds;
        let make = move |address: Address| {
            let source = source.to(address.host.clone(), address.port);
            let connect = Arc::new(source.clone());
            let link = Arc::new(Reconnecting::new(connect, introduction.clone(), source.attempts.clone()));
            let subscriber = Arc::new(Subscriber::new(source, link.clone(), handler.clone()));
            let (id, epoch, first_slot, question) = Default::default();
            Arc::new(Node { address, id, epoch, first_slot, link, subscriber, question })
        };
        let nodes = seeds.iter().map(|seed| (seed.clone(), make(seed.clone()))).collect();
        let owners = vec![None; usize::from(SLOTS)].into();
        let (masters, strange_since) = (Vec::new(), None);
        Self { seeds, by_hostname, make: Box::new(make), nodes, owners, masters, strange_since }
    }

    /// Returns the master of the slot. `None` before the first view. A slot without a master is served by none; the
    /// answer of any node says so.
    pub(super) fn master(&self, slot: u16) -> Option<&Arc<Node>> {
        self.owners[usize::from(slot)].as_ref().or_else(|| self.masters.first())
    }

    /// Returns the failure domain of the slot: the first slot of its master. A node that replaces a master has the same
    /// slots, so it closes the circuit breaker that the master has opened. Slots without a master have a domain of their
    /// own, because the node that is asked for them serves its own slots.
    pub(super) fn failure_domain(&self, slot: u16) -> u16 {
        let without_master = if self.masters.is_empty() { 0 } else { SLOTS };
        self.owners[usize::from(slot)].as_ref().map_or(without_master, |master| master.first_slot.load(Relaxed))
    }

    /// Returns the masters that have slots.
    pub(super) fn masters(&self) -> &[Arc<Node>] {
        &self.masters
    }

    /// Returns all nodes.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.iter().filter(|(address, node)| node.address == **address).map(|(_, node)| node)
    }

    /// Returns the nodes that the user has named.
    pub(super) fn seeds(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.seeds.iter().filter_map(|seed| self.nodes.get(seed))
    }

    /// Returns the node that is announced under this address. An empty host is the host that has said so.
    pub(super) fn find(&self, address: &str, said_by: &Address) -> Option<&Arc<Node>> {
        self.nodes.get(&Address::parse(address, &said_by.host)?)
    }

    /// Reports whether the nodes have to be asked: a master answers nothing, or views contradict what is known.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.strange_since.is_some() || self.masters.iter().any(|node| node.link.is_in_doubt())
    }

    /// Takes over the view of a node, the reply to `CLUSTER NODES`. Returns whether a slot has another master than before.
    ///
    /// If all views are strange for `STRANGE_TIMEOUT`, the cluster was made again, and the view is believed.
    pub(super) fn learn(&mut self, view: &str, by: &Node, now: Timestamp) -> bool {
        let parse = |line| Described::parse(line, &by.address.host, self.by_hostname);
        let lines: Vec<_> = view.lines().filter_map(parse).collect();
        let is_believed = self.strange_since.is_some_and(|since| now.since(since) >= STRANGE_TIMEOUT);
        let before = self.masters.clone();
        let is_known = |line: &Described<'_>| before.iter().any(|master| master.id() == Some(line.id));
        if !is_believed && !before.is_empty() && !lines.iter().any(is_known) {
            self.strange_since.get_or_insert(now);
            return false;
        }
        let (mut claims, mut author, mut present) = (Vec::new(), None, HashSet::new());
        for Described { id, addresses, is_author, is_master, epoch, slots } in lines {
            let node = self.node(id, &addresses, &before);
            if is_master {
                // A view from before the node has got its epoch may arrive late.
                if is_author && epoch >= node.epoch.load(Relaxed) {
                    author = Some(node.clone());
                }
                claims.push((node.clone(), epoch, slots));
            }
            // A seed is asked under its own name, which may lead to another node one day.
            let names = addresses.iter().filter(|address| **address == node.address || !self.seeds.contains(address));
            self.nodes.extend(names.map(|address| (address.clone(), node.clone())));
            present.extend(addresses);
        }
        let has_moved = self.take_over(&claims, author.as_ref(), is_believed, now);
        // The connections to a node that is not a master any more are dropped, because it may become one again, with the
        // data of another node.
        self.nodes.retain(|address, node| {
            let [was_master, is_master] =
                [&before, &self.masters].map(|masters| masters.iter().any(|it| Arc::ptr_eq(it, node)));
            let is_own = is_master && node.address == *address;
            is_own || (is_master || !was_master) && (present.contains(address) || self.seeds.contains(address))
        });
        for seed in &*self.seeds {
            self.nodes.entry(seed.clone()).or_insert_with(|| (self.make)(seed.clone()));
        }
        has_moved
    }

    fn take_over(&mut self, claims: &[Claim], author: Option<&Arc<Node>>, is_believed: bool, now: Timestamp) -> bool {
        let (mut is_refused, mut has_moved) = (false, false);
        for (node, epoch, slots) in claims {
            for slot in slots.iter().cloned().flatten() {
                let owner = &mut self.owners[usize::from(slot)];
                let may_replace = |owner: &Arc<Node>| {
                    is_believed
                        || author.is_some_and(|author| Arc::ptr_eq(owner, author))
                        || owner.id() == node.id() // at another address
                        || *epoch >= owner.epoch.load(Relaxed)
                };
                if owner.as_ref().is_some_and(|owner| Arc::ptr_eq(owner, node)) {
                } else if owner.as_ref().is_none_or(may_replace) {
                    has_moved |= owner.replace(node.clone()).is_some();
                } else {
                    is_refused = true;
                }
            }
        }
        self.masters.clear();
        for (slot, owner) in (0..SLOTS).zip(&self.owners) {
            if let Some(owner) = owner
                && !self.masters.iter().rev().any(|master| Arc::ptr_eq(master, owner))
            {
                owner.first_slot.store(slot, Relaxed);
                self.masters.push(owner.clone());
            }
        }
        // After the comparison: a present master may have got a higher epoch for other slots.
        for (node, epoch, _) in claims {
            let lowest = if is_believed { 0 } else { node.epoch.load(Relaxed) };
            node.epoch.store(lowest.max(*epoch), Relaxed);
        }
        if is_refused {
            self.strange_since.get_or_insert(now);
        } else if claims.iter().any(|(.., slots)| !slots.is_empty()) {
            self.strange_since = None;
        }
        has_moved
    }

    /// Returns the node with this id at one of these addresses, which may be new. An address may be that of several nodes,
    /// of which all but one have failed, and the host name of a node may lead to another address than before.
    fn node(&self, id: &str, addresses: &[Address], masters: &[Arc<Node>]) -> Arc<Node> {
        let named = addresses.iter().filter_map(|address| self.nodes.get(address));
        let known = masters
            .iter()
            .chain(named)
            .find(|node| addresses.contains(&node.address) && node.id.get_or_init(|| id.to_owned()) == id);
        known.cloned().unwrap_or_else(|| {
            let node = (self.make)(addresses[0].clone());
            let _ = node.id.set(id.to_owned()); // it is new
            node
        })
    }
}

impl<'a> Described<'a> {
    /// Parses a line: id, `host:port@bus,hostname`, flags, the id of the master, two times, epoch, link state, slots.
    /// `None` for a node without an address, or one that has not joined yet. An empty host is `own_host`, of the author.
    fn parse(line: &'a str, own_host: &str, by_hostname: bool) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (id, endpoint, flags) = (words.next()?, words.next()?, words.next()?);
        let has = |flag| flags.split(',').any(|word| word == flag);
        if has("noaddr") || has("handshake") {
            return None;
        }
        let mut announced = endpoint.split(',');
        let address = Address::parse(announced.next()?.split('@').next()?, own_host)?;
        let hostname = announced.next().filter(|name| !name.is_empty() && !name.contains('='));
        let alias = hostname.map(|host| Address { host: host.to_owned(), port: address.port });
        let mut addresses: Vec<_> = [Some(address), alias].into_iter().flatten().collect();
        if by_hostname {
            addresses.reverse();
        }
        let epoch = words.nth(3)?.parse().ok()?;
        let range = |word: &str| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            let (first, last) = (first.parse().ok()?, last.parse().ok()?);
            (last < SLOTS).then_some(first..=last)
        };
        Some(Self {
            id,
            addresses,
            is_author: has("myself"),
            is_master: has("master"),
            epoch,
            slots: words.skip(1).filter_map(range).collect(), // a slot that moves is in brackets as well
        })
    }
}

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
    pub(super) question: Mutex<WeakShared<RedisResult<()>>>,
}

impl Node {
    pub(super) fn id(&self) -> Option<&str> {
        self.id.get().map(String::as_str)
    }
}

const NO_ADDRESS: (ErrorKind, &str) = (ErrorKind::InvalidClientConfig, "a node of a cluster has a host and a port");
const NO_NODES: (ErrorKind, &str) = (ErrorKind::InvalidClientConfig, "a cluster needs at least one node");
const DIFFERENT_NODES: (ErrorKind, &str) =
    (ErrorKind::InvalidClientConfig, "the nodes of a cluster must not differ in user, password or TLS");
/// Time for which all views have to be strange, before the cluster counts as another cluster at the same addresses.
const STRANGE_TIMEOUT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::token::Inbox;
    use proptest::{collection::vec, prelude::*, sample::select};
    use redis::IntoConnectionInfo;

    const NOW: Timestamp = Timestamp::from_micros(0);

    struct Silent;

    impl MessageHandler for Silent {
        fn inbox(&self) -> Inbox {
            Inbox::unique()
        }

        fn on_message(&self, _: &[u8]) {}

        fn on_gap(&self) {}
    }

    fn topology(seed: &str) -> Topology {
        let seed = format!("redis://{seed}").into_connection_info().expect("a URL");
        Topology::new(Seeds::of(&[seed]).expect("a node"), Arc::default(), Arc::new(Silent))
    }

    /// Returns a view of masters: port, epoch, slots. The first one has said so.
    fn view(masters: &[(u16, u64, &str)]) -> String {
        let line = |(n, (port, epoch, slots)): (usize, &(u16, u64, &str))| {
            let flags = if n == 0 { "myself,master" } else { "master" };
            format!("id{port} 10.0.0.1:{port}@1{port} {flags} - 0 0 {epoch} connected {slots}\n")
        };
        masters.iter().enumerate().map(line).collect()
    }

    impl Topology {
        fn node_at(&self, port: u16) -> Option<&Arc<Node>> {
            self.nodes().find(|node| node.address.port == port)
        }

        fn learn_at(&mut self, now: Timestamp, masters: &[(u16, u64, &str)]) -> bool {
            let by = self.node_at(masters[0].0).or(self.nodes().next()).expect("a seed").clone();
            self.learn(&view(masters), &by, now)
        }

        fn port(&self, slot: u16) -> Option<u16> {
            Some(self.master(slot)?.address.port)
        }
    }

    #[test]
    fn view_of_all_versions_names_the_masters() {
        let view = "a :7000@17000 myself,master - 0 1 3 connected 0-99 200 [93->-b] [94-<-c]\n\
                    b 10.0.0.2:7001@17001,b.example master - 0 1 2 connected 100-199\n\
                    c ::1:7002@17002,,shard-id=69 master - 0 1 1 connected 300-16383\n\
                    d 10.0.0.4:7003@17003,d.example,shard-id=1 slave a 0 1 3 connected\n\
                    e :0@0 master,noaddr - 0 1 9 disconnected 0-16383\n\
                    f 10.0.0.6:7005@17005 handshake - 0 1 0 connected\n";
        for by_hostname in [false, true] {
            let mut topology = topology("seed:7000");
            assert_eq!(topology.port(0), None);
            let seed = topology.node_at(7000).expect("a seed").clone();
            topology.by_hostname = by_hostname;
            topology.learn(view, &seed, NOW);
            let host = |slot| topology.master(slot).expect("a master").address.host.as_str();
            let b = if by_hostname { "b.example" } else { "10.0.0.2" };
            assert_eq!([0, 93, 200, 100, 300].map(host), ["seed", "seed", "seed", b, "::1"]);
            assert!(topology.master(250).is_some(), "any node says that no node has the slot");
            assert_eq!((topology.masters().len(), topology.nodes().count()), (3, 4));
            for address in ["b.example:7001", "10.0.0.2:7001", "::1:7002", ":7000"] {
                assert!(topology.find(address, &seed.address).is_some(), "{address}");
            }
            assert!(topology.find("e.example:1", &seed.address).is_none());
        }
    }

    /// Seen to fail, at the second view, if any view is believed.
    #[test]
    fn slot_never_goes_back_to_a_master_with_a_lower_epoch() {
        let mut topology = topology("10.0.0.1:1");
        topology.learn_at(NOW, &[(1, 1, "0-9"), (2, 2, "10-16383")]);
        assert!(topology.learn_at(NOW, &[(2, 2, "10-16383"), (3, 3, "0-9")]));
        assert_eq!(topology.port(0), Some(3));
        assert!(!topology.learn_at(NOW, &[(1, 1, "0-9"), (2, 2, "10-16383")]), "it is cut off");
        assert_eq!(topology.port(0), Some(3));
        assert!(topology.is_in_doubt());
        topology.learn_at(NOW, &[(2, 2, "10-16383"), (3, 3, "0-9")]);
        assert!(!topology.is_in_doubt());
    }

    /// A master keeps its higher epoch when it gives a slot away to another master.
    ///
    /// Seen to fail if the present master is not believed either.
    #[test]
    fn master_that_disowns_a_slot_is_believed() {
        let mut topology = topology("10.0.0.1:1");
        topology.learn_at(NOW, &[(2, 2, "10-16383"), (1, 7, "0-9")]);
        assert!(!topology.learn_at(NOW, &[(2, 6, "0 10-16383"), (1, 7, "1-9")]));
        assert!(topology.learn_at(NOW, &[(1, 7, "1-9"), (2, 6, "0 10-16383")]));
        assert_eq!([0, 1].map(|slot| topology.port(slot)), [Some(2), Some(1)]);
    }

    /// The answer of a replica arrives after the view of another node that it has become the master.
    ///
    /// Seen to fail if whatever a present master says is believed.
    #[test]
    fn late_view_of_a_new_master_moves_no_slot_back() {
        let mut topology = topology("10.0.0.1:1");
        topology.learn_at(NOW, &[(2, 2, "10-16383"), (1, 1, "0-9")]);
        topology.learn_at(NOW, &[(2, 2, "10-16383"), (3, 3, "0-9")]);
        let new = topology.node_at(3).expect("known").clone();
        for late in ["myself,slave", "myself,master"] {
            let view = view(&[(3, 1, ""), (1, 1, "0-9"), (2, 2, "10-16383")]).replacen("myself,master", late, 1);
            assert!(!topology.learn(&view, &new, NOW), "{late}");
        }
        assert_eq!(topology.port(0), Some(3));
    }

    /// Seen to fail if a view is compared with the epochs that it brings itself.
    #[test]
    fn present_epoch_is_the_one_before_the_view() {
        let mut topology = topology("10.0.0.1:1");
        topology.learn_at(NOW, &[(2, 2, "10-16383"), (1, 5, "0-9")]);
        assert!(topology.learn_at(NOW, &[(2, 6, "0 11-16383"), (1, 7, "1-10")]));
        assert_eq!([0, 10].map(|slot| topology.port(slot)), [Some(2), Some(1)]);
    }

    #[test]
    fn cluster_made_again_is_believed_after_a_minute() {
        let mut topology = topology("10.0.0.1:1");
        topology.learn_at(NOW, &[(1, 8, "0-9"), (2, 9, "10-16383")]);
        let again: &[_] = &[(3, 2, "10-16383"), (1, 1, "0-9")];
        for (seconds, moved) in [(0, false), (59, false), (60, true)] {
            let has_moved = topology.learn_at(NOW.after(Duration::from_secs(seconds)), again);
            assert_eq!(has_moved, moved, "{seconds}");
        }
        assert_eq!(topology.port(10), Some(3));
        let failover: &[_] = &[(3, 2, "10-16383"), (4, 3, "0-9")];
        assert!(topology.learn_at(NOW, failover), "the epochs of before count no more");

        topology.learn_at(NOW, again);
        topology.learn_at(NOW.after(STRANGE_TIMEOUT / 2), failover);
        assert!(!topology.learn_at(NOW.after(STRANGE_TIMEOUT), again), "a node has agreed meanwhile");
    }

    /// The address of a node that is gone now belongs to another cluster, which is older.
    ///
    /// Seen to fail if higher epochs alone decide.
    #[test]
    fn view_of_another_cluster_is_not_believed() {
        let mut topology = topology("10.0.0.1:1");
        let own: &[_] = &[(1, 1, "0-9"), (2, 2, "10-16383")];
        topology.learn_at(NOW, own);
        let other = view(&[(1, 8, "0-8191"), (5, 9, "8192-16383")]).replace("id", "other");
        let by = topology.node_at(1).expect("a seed").clone();
        let mut learn_other = |after| topology.learn(&other, &by, NOW.after(after));
        assert!(!learn_other(Duration::ZERO) && !learn_other(STRANGE_TIMEOUT / 2));
        topology.learn_at(NOW, &[own[1], own[0]]);
        assert_eq!([0, 10].map(|slot| topology.port(slot)), [Some(1), Some(2)]);
        let mut learn_other = |after| topology.learn(&other, &by, NOW.after(after));
        assert!(!learn_other(STRANGE_TIMEOUT) && learn_other(2 * STRANGE_TIMEOUT), "no node has agreed for a minute");
        assert_eq!(topology.master(0).and_then(|node| node.id()), Some("other1"));
    }

    /// So a circuit breaker that the dead master has opened is closed by the new one.
    #[test]
    fn new_master_takes_over_the_failure_domain() {
        let mut topology = topology("10.0.0.1:1");
        topology.learn_at(NOW, &[(1, 1, "0-9"), (2, 2, "10-99"), (3, 3, "100-16383"), (4, 0, "")]);
        let domains = |topology: &Topology| [0, 10, 100].map(|slot| topology.failure_domain(slot));
        let before = domains(&topology);
        assert_eq!(HashSet::from(before).len(), 3);
        topology.learn_at(NOW, &[(2, 2, "10-99"), (3, 3, "100-16383"), (4, 4, "0-9")]);
        assert_eq!((domains(&topology), topology.port(0)), (before, Some(4)));
    }

    /// Seen to fail, with the domain of the first master, if the domain is that of the node that is asked.
    #[test]
    fn slots_without_a_master_have_a_failure_domain_of_their_own() {
        let mut topology = topology("10.0.0.1:1");
        assert_eq!(topology.failure_domain(7), 0, "nothing is known");
        topology.learn_at(NOW, &[(1, 1, "0-9"), (2, 2, "20-16383")]);
        assert_eq!([0, 10, 19, 20].map(|slot| topology.failure_domain(slot)), [0, SLOTS, SLOTS, 20]);
        assert_eq!(topology.port(10), Some(1), "a node that says so is asked");
    }

    /// A master that was replaced, and replaces its replica, may have lost what it has acknowledged before.
    ///
    /// Seen to fail if nodes are known by their addresses alone.
    #[test]
    fn master_that_comes_back_is_connected_to_again() {
        let mut topology = topology("10.0.0.1:2");
        let views: [&[_]; 3] = [
            &[(2, 2, "10-16383"), (1, 1, "0-9"), (3, 0, "")],
            &[(2, 2, "10-16383"), (1, 1, ""), (3, 3, "0-9")],
            &[(2, 2, "10-16383"), (1, 4, "0-9"), (3, 3, "")],
        ];
        let masters = views.map(|view| {
            topology.learn_at(NOW, view);
            [0, 10].map(|slot| topology.master(slot).expect("a master").clone())
        });
        assert!(masters.iter().all(|[_, other]| Arc::ptr_eq(other, &masters[0][1])), "one master stays");
        assert_eq!(masters[0][0].address, masters[2][0].address);
        assert!(!Arc::ptr_eq(&masters[0][0], &masters[2][0]));
    }

    /// Its host name stays, as that of a pod does.
    ///
    /// Seen to fail, with the address of before, if a host name alone finds a node.
    #[test]
    fn node_that_moves_to_another_address_is_followed() {
        let at = |host: &str| format!("a {host}:1@2,a.example myself,master - 0 0 1 connected 0-16383\n");
        let mut topology = topology("b.example:1");
        let by = topology.node_at(1).expect("a seed").clone();
        assert!(!topology.learn(&at("10.0.0.1"), &by, NOW));
        assert!(topology.learn(&at("10.0.0.2"), &by, NOW));
        assert_eq!(topology.master(0).expect("a master").address.host, "10.0.0.2");
    }

    /// A node that has started with another id, at the address of one that has failed and is not forgotten.
    ///
    /// Seen to fail, with a new connection at each view, if an address has one node.
    #[test]
    fn failed_node_at_the_same_address_replaces_no_master() {
        let mut topology = topology("10.0.0.1:1");
        let view = view(&[(1, 3, "0-16383")]) + "old 10.0.0.1:1@2 master,fail - 0 0 1 disconnected\n";
        let by = topology.node_at(1).expect("a seed").clone();
        topology.learn(&view, &by, NOW);
        let first = topology.master(0).expect("a master").clone();
        assert!(!topology.learn(&view, &by, NOW));
        assert!(Arc::ptr_eq(&first, topology.master(0).expect("a master")));
    }

    /// Seen to fail if a node that announces the name of a seed takes the place of the seed.
    #[test]
    fn seed_is_asked_under_its_own_name() {
        let mut topology = topology("a.example:1");
        let by = topology.node_at(1).expect("a seed").clone();
        for (id, host) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
            let view = format!(
                "{id} {host}:1@2,a.example myself,slave m 0 0 1 connected\n\
                 m 10.0.0.9:1@2 master - 0 0 1 connected 0-16383\n"
            );
            topology.learn(&view, &by, NOW);
            assert!(topology.nodes().any(|node| node.address.host == "a.example"), "{id}");
        }
    }

    /// Seen to fail, with one more address for each name, if a master keeps all host names that it has announced.
    #[test]
    fn master_is_forgotten_under_the_host_names_of_before() {
        let mut topology = topology("10.0.0.1:1");
        let by = topology.node_at(1).expect("a seed").clone();
        for n in 0..100 {
            let view = format!("a 10.0.0.1:1@2,h{n}.example myself,master - 0 0 1 connected 0-16383\n");
            topology.learn(&view, &by, NOW);
            assert_eq!(topology.nodes.len(), 2);
            assert!(topology.find(&format!("h{n}.example:1"), &by.address).is_some());
        }
    }

    proptest! {
        #[test]
        fn any_view_can_be_learned(views in vec(vec(line(), 0..6), 1..6)) {
            let mut topology = topology("10.0.0.1:1");
            for view in views {
                let by = topology.nodes().next().expect("a seed").clone();
                topology.by_hostname = view.len() % 2 == 0;
                topology.learn(&view.join("\n"), &by, NOW);
                topology.failure_domain(u16::MAX % SLOTS);
                prop_assert!(topology.nodes().any(|node| node.address.port == 1 && node.address.host == "10.0.0.1"));
            }
        }
    }

    /// Returns a line that is nearly right.
    fn line() -> impl Strategy<Value = String> {
        let word =
            |words: &'static [&'static str]| prop_oneof![4 => select(words).prop_map(str::to_owned), 1 => "\\PC{0,12}"];
        (
            word(&["a", "b", "c"]),
            word(&[":1@2", "10.0.0.1:1@2,h", "::1:0@0", "h:65535@1,,shard-id=1", "h:65536", "?:1", ",h", "@", ":"]),
            word(&["master", "myself,master", "slave", "master,fail?", "noaddr", "nofailover,master", "noflags"]),
            word(&["0", "1", "18446744073709551615", "18446744073709551616", "-1"]),
            vec(word(&["0-16383", "16383", "16384", "9-3", "-", "0-", "[1->-a]", "[1", "65535-0", "0-65535"]), 0..4),
        )
            .prop_map(|(id, at, flags, epoch, slots)| {
                format!("{id} {at} {flags} - 0 0 {epoch} connected {}", slots.join(" "))
            })
    }

    #[test]
    fn absent_node_is_forgotten_unless_it_is_a_seed() {
        let mut topology = topology("seed:1");
        for n in 0..100 {
            topology.learn_at(NOW, &[(1, 1, "0-16383"), (n + 2, 0, "")]);
        }
        assert_eq!(topology.nodes().count(), 3);
        assert!(topology.nodes().any(|node| node.address.host == "seed"));
    }
}
