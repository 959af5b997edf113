//! The slots of a cluster: which node has which, and whether a node still has the ones that it had.

use super::{
    connection::{
        reconnecting::{CommandLink, Handshake},
        tracked::{Authority, Check},
    },
    names::SLOTS,
};
use crate::{clock::Timestamp, store::error::BoxFuture, sync::mutex::Mutex};
use redis::{Cmd, Pipeline, Value};
use std::{ops::RangeInclusive, time::Duration};

/// A range of slots, and the master that has them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub(super) slots: RangeInclusive<u16>,
    pub(super) id: String,
    pub(super) host: String,
    pub(super) port: u16,
}

/// Returns the command that asks a node for its view of the slots.
pub(super) fn slots_command() -> Cmd {
    let mut cmd = redis::cmd("CLUSTER");
    cmd.arg("SLOTS");
    cmd
}

/// Parses the reply to [`slots_command`]. Returns `None` if it is the reply to another command.
pub(super) fn parse_slots(answer: &Value) -> Option<Vec<SlotRange>> {
    array(answer)?.iter().map(parse_range).collect()
}

/// Parses first slot, last slot, the master, and its replicas.
fn parse_range(range: &Value) -> Option<SlotRange> {
    let [Value::Int(first), Value::Int(last), master, ..] = array(range)? else { return None };
    let [host, Value::Int(port), id, ..] = array(master)? else { return None };
    let slot = |slot: i64| u16::try_from(slot).ok().filter(|slot| *slot < SLOTS);
    // A node that does not know its own host names none, and one whose host is configured but unknown is at `?`.
    let host = text(host).filter(|host| host != "?").unwrap_or_default();
    Some(SlotRange { slots: slot(*first)?..=slot(*last)?, id: text(id)?, host, port: u16::try_from(*port).ok()? })
}

/// Returns the id of the master of the slot.
pub(super) fn owner_of(slot: u16, ranges: &[SlotRange]) -> Option<String> {
    ranges.iter().find(|range| range.slots.contains(&slot)).map(|range| range.id.clone())
}

fn array(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(values) => Some(values),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(text) => String::from_utf8(text.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

/// A set of slots, as bits: 2 KiB.
#[derive(Clone)]
struct SlotSet(Box<[u64]>);

impl SlotSet {
    /// Creates the set of the slots that the node has.
    fn of(ranges: &[SlotRange], id: &str) -> Self {
        let mut set = Self::default();
        for slot in ranges.iter().filter(|range| range.id == id).flat_map(|range| range.slots.clone()) {
            set.0[usize::from(slot / 64)] |= 1 << (slot % 64);
        }
        set
    }

    fn contains(&self, slot: u16) -> bool {
        self.0[usize::from(slot / 64)] & 1 << (slot % 64) != 0
    }

    fn contains_all(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(own, others)| others & !own == 0)
    }
}

impl Default for SlotSet {
    fn default() -> Self {
        Self(vec![0; usize::from(SLOTS / 64)].into())
    }
}

/// The slots of one node in its own view, asked for over the tracked connection to it.
///
/// A node reports the changes of its own data. They are the changes of an entry only while the node has its slot: after
/// a failover or a migration another node takes the writes. So a copy is confirmed only if
///
/// - the node had the slot at the check before its read, and at every check since;
/// - the node still answers a read. A master that was cut off from the majority of masters refuses reads before its
///   replica may take its place.
///
/// A check confirms the time of the check before it. A node that was stopped while a replica took its place believes
/// for a moment after it goes on that it is the master. It has learnt of the new master [`MIN_CHECK_INTERVAL`] later.
pub(super) struct NodeSlots {
    id: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    slots: SlotSet,
    /// A name that was read over the connection.
    name: Option<String>,
    /// When the last check that may be confirmed was sent and answered.
    checked: Option<(Timestamp, Timestamp)>,
}

impl State {
    /// Records a check that was answered now. Returns when the one before was sent, if its answer is old enough.
    fn confirm(&mut self, sent_at: Timestamp) -> Option<Timestamp> {
        if self.checked.is_some_and(|(_, answered_at)| sent_at.since(answered_at) < MIN_CHECK_INTERVAL) {
            return None;
        }
        self.checked.replace((sent_at, Timestamp::now())).map(|(sent_at, _)| sent_at)
    }
}

impl NodeSlots {
    pub(super) fn of(id: String) -> Self {
        Self { id, state: Mutex::default() }
    }

    /// Reports whether the node has any slots. Otherwise the connection leads to another node.
    pub(super) fn has_slots(&self) -> bool {
        self.state.lock().slots.0.iter().any(|bits| *bits != 0)
    }

    /// Reports whether the node had the slot of this name at the last check. To be called after the versions of a read
    /// were taken: a check that finds the slot lost ends all earlier versions, and this answer is `false` from then on.
    pub(super) fn may_read(&self, slot: u16, name: &str) -> bool {
        let mut state = self.state.lock();
        let has_slot = state.slots.contains(slot);
        if has_slot && state.name.is_none() {
            state.name = Some(name.to_owned());
        }
        has_slot
    }

    /// Reports whether the node answers a read of a name that was read before.
    async fn answers_reads(&self, link: &dyn CommandLink) -> bool {
        let Some(name) = self.state.lock().name.clone() else { return false };
        let answers = link.send(redis::cmd("PTTL").arg(name)).await.is_ok();
        if !answers {
            self.state.lock().name = None; // its slot may have moved
        }
        answers
    }
}

impl Handshake for NodeSlots {
    fn commands(&self) -> Pipeline {
        let mut pipeline = redis::pipe();
        pipeline.add_command(slots_command());
        pipeline
    }

    /// Learns the first view over a new connection, before any read over it.
    fn on_replies(&self, answers: &[Value], _: Timestamp, _: Timestamp) {
        if let Some(ranges) = answers.first().and_then(parse_slots) {
            self.state.lock().slots = SlotSet::of(&ranges, &self.id);
        }
    }
}

impl Authority for NodeSlots {
    /// Returns the same number always: a node that is replaced shows by its slots.
    fn generation(&self) -> u64 {
        1
    }

    fn longest_pause(&self) -> Duration {
        LONGEST_CONNECT_PAUSE
    }

    fn check<'a>(&'a self, link: &'a dyn CommandLink) -> BoxFuture<'a, Check> {
        Box::pin(async {
            let sent_at = Timestamp::now();
            let answers_reads = self.answers_reads(link).await;
            let view = link.send(&slots_command()).await.ok();
            let Some(ranges) = view.as_ref().and_then(parse_slots) else { return Check::default() };
            let (slots, mut state) = (SlotSet::of(&ranges, &self.id), self.state.lock());
            let has_lost = !slots.contains_all(&state.slots);
            state.slots = slots;
            let confirmed = if answers_reads { state.confirm(sent_at) } else { None };
            Check { has_lost, confirmed }
        })
    }
}

/// Minimum time between an answer and the check that confirms it. A node that was stopped hears of its successor within
/// it.
pub(super) const MIN_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Longest pause between attempts to connect to a node. Its address may be unreachable for this process.
const LONGEST_CONNECT_PAUSE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use redis::RedisResult;

    fn range(first: u16, last: u16, id: &str) -> Value {
        let node = |id: &str| {
            let name = |text: &str| Value::BulkString(text.as_bytes().to_vec());
            Value::Array(vec![name("10.0.0.1"), Value::Int(7000), name(id)])
        };
        Value::Array(vec![Value::Int(first.into()), Value::Int(last.into()), node(id), node("replica")])
    }

    #[test]
    fn slots_are_parsed_with_their_masters() {
        let ranges = parse_slots(&Value::Array(vec![range(0, 99, "a"), range(100, 16_383, "b")])).expect("ranges");
        let of = |slots, id: &str| SlotRange { slots, id: id.into(), host: "10.0.0.1".into(), port: 7000 };
        assert_eq!(ranges, [of(0..=99, "a"), of(100..=16_383, "b")]);
        for other in [Value::Okay, Value::Array(vec![Value::Int(1)]), Value::Array(vec![range(0, 16_384, "a")])] {
            assert_eq!(parse_slots(&other), None, "{other:?}");
        }
    }

    /// A node that answers with its view of the slots, and with an error if it is cut off.
    #[derive(Default)]
    struct Node(Mutex<(Vec<Value>, bool)>);

    impl CommandLink for Node {
        fn send<'a>(&'a self, cmd: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>> {
            let is_read = cmd.args_iter().next() == Some(redis::Arg::Simple(b"PTTL"));
            let (view, is_cut_off) = self.0.lock().clone();
            Box::pin(async move {
                match is_read {
                    true if is_cut_off => redis::parse_redis_value(b"-CLUSTERDOWN down\r\n")?.extract_error(),
                    true => Ok(Value::Int(1)),
                    false => Ok(Value::Array(view)),
                }
            })
        }

        fn transact<'a>(&'a self, _: &'a Pipeline) -> BoxFuture<'a, RedisResult<Value>> {
            Box::pin(std::future::pending())
        }

        fn verify(&self) -> BoxFuture<'_, ()> {
            Box::pin(async {})
        }

        fn generation(&self) -> u64 {
            1
        }
    }

    /// Seen to fail if each check confirms the one before it.
    #[tokio::test(start_paused = true)]
    async fn overdue_checks_do_not_confirm_each_other() {
        let (node, slots) = (Node::default(), NodeSlots::of("a".into()));
        node.0.lock().0 = vec![range(0, 9, "a")];
        slots.on_replies(&[Value::Array(vec![range(0, 9, "a")])], Timestamp::now(), Timestamp::now());
        assert!(slots.may_read(9, "name"));
        let first = Timestamp::now();
        assert_eq!(slots.check(&node).await.confirmed, None);
        for _ in 0..19 {
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(slots.check(&node).await.confirmed, None);
        }
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(slots.check(&node).await.confirmed, Some(first));
    }

    #[test]
    fn unknown_host_is_none() {
        let host = |text: &[u8]| Value::BulkString(text.to_vec());
        for unknown in [host(b"?"), host(b""), Value::Nil] {
            let node = Value::Array(vec![unknown, Value::Int(7000), host(b"a")]);
            let ranges = parse_slots(&Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(9), node])]));
            assert_eq!(ranges.expect("a range")[0].host, "");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn node_is_confirmed_while_it_has_its_slots() {
        let (node, slots) = (Node::default(), NodeSlots::of("a".into()));
        let view = |ranges: &[Value], is_cut_off| *node.0.lock() = (ranges.to_vec(), is_cut_off);
        let check = async || {
            tokio::time::advance(MIN_CHECK_INTERVAL).await;
            let Check { has_lost, confirmed } = slots.check(&node).await;
            (has_lost, confirmed)
        };
        view(&[range(0, 9, "a")], false);
        slots.on_replies(&[Value::Array(vec![range(0, 9, "a")])], Timestamp::now(), Timestamp::now());
        assert_eq!(check().await, (false, None), "nothing was read yet");
        assert!(slots.may_read(9, "name") && !slots.may_read(10, "other"));

        assert_eq!(check().await, (false, None), "the first check confirms nothing");
        let after_first = Timestamp::now();
        view(&[range(0, 10, "a")], false);
        let (has_lost, confirmed) = check().await;
        assert!(!has_lost && confirmed.is_some_and(|at| at <= after_first), "the time of the first check");
        assert!(slots.may_read(10, "other"), "it has got a slot");

        view(&[range(0, 10, "a")], true);
        assert_eq!(check().await, (false, None), "it is cut off");
        view(&[range(0, 9, "b"), range(10, 10, "a")], false);
        assert!(check().await.0, "it has lost slots");
        assert!(!slots.may_read(9, "name"));
        assert!(!check().await.0, "once");
    }
}
