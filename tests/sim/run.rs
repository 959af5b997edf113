//! Runs a plan: real guards in nodes of one server, in virtual time.

use crate::{
    plan::{Ask, Ends, How, OPERATIONS, Plan, STORE_TIMEOUT, Step, ms},
    support::Down,
    world::{Answer, Record, World},
};
use futures_util::{FutureExt, future::BoxFuture};
use stampede_guard::{
    Error, FetchContext, FetchOutcome, StampedeGuard, Stats,
    testing::{self, Event, FakeRedis, Node},
};
use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::Duration,
};
use tokio::{
    runtime,
    sync::RwLock,
    task::JoinSet,
    time::{sleep, timeout},
};

/// The result of a run, to be checked.
pub(crate) struct Outcome {
    pub(crate) record: Record,
    pub(crate) history: Vec<Event>,
    /// The state after all callers were answered and all guards were drained.
    pub(crate) rest: Rest,
}

#[derive(Debug)]
pub(crate) struct Rest {
    pub(crate) drained: bool,
    pub(crate) in_flight: Vec<usize>,
    pub(crate) listening: Vec<usize>,
    pub(crate) reports: Vec<Stats>,
    /// Number of leases that are still held.
    pub(crate) leases: usize,
    /// Number of tasks that are left after all late requests have arrived.
    pub(crate) tasks: usize,
}

pub(crate) fn run(seed: u64, plan: &Plan) -> Outcome {
    testing::seed(seed);
    let runtime = runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    runtime.block_on(simulate(plan))
}

#[derive(Clone)]
struct Fleet {
    world: World,
    server: FakeRedis,
    nodes: Vec<Node>,
    guards: Vec<StampedeGuard>,
    /// The writers of each key: one that puts, or others.
    writers: Arc<[RwLock<()>]>,
}

async fn simulate(plan: &Plan) -> Outcome {
    let server = FakeRedis::new();
    let world = World::new(plan.nodes, plan.keys);
    let nodes: Vec<_> = (0..plan.nodes).map(|_| server.node()).collect();
    let guards = nodes.iter().map(|node| guard(node, plan)).collect();
    let writers = (0..plan.keys).map(|_| RwLock::default()).collect();
    let fleet = Fleet { world, server, nodes, guards, writers };
    for (number, _) in plan.latencies.iter().enumerate() {
        fleet.slow_down(plan, number);
    }
    let mut callers = JoinSet::new();
    for (at, step) in &plan.steps {
        let now = fleet.world.now();
        sleep(at.saturating_sub(now)).await;
        fleet.take(plan, step, &mut callers);
    }
    while let Some(caller) = callers.join_next().await {
        caller.expect("callers do not panic");
    }
    let rest = fleet.come_to_rest().await;
    Outcome { record: fleet.world.take(), history: fleet.server.history(), rest }
}

fn guard(node: &Node, plan: &Plan) -> StampedeGuard {
    let settings = &plan.settings;
    let guard = node.guard().policy(settings.policy()).lease_ttl(settings.lease).wait_timeout(settings.wait);
    let guard = guard
        .fetch_timeout(settings.fetch_timeout)
        .failure_ttl(settings.failure_ttl)
        .uncacheable_ttl(settings.uncacheable_ttl)
        .max_fallback_fetches(settings.max_fallback_fetches);
    guard.store_timeout(STORE_TIMEOUT)
}

impl Fleet {
    fn slow_down(&self, plan: &Plan, node: usize) {
        for (operation, fault) in &plan.latencies[node] {
            self.nodes[node].always(*operation, fault.clone());
        }
    }

    fn heal(&self, plan: &Plan, node: usize) {
        self.nodes[node].heal();
        self.slow_down(plan, node);
    }

    fn take(&self, plan: &Plan, step: &Step, callers: &mut JoinSet<()>) {
        if !matches!(step, Step::Ask(_)) {
            self.world.say(format_args!("script: {step:?}"));
        }
        match *step {
            Step::Ask(ask) => _ = callers.spawn(self.clone().asks(ask, false)),
            Step::Write { node, key, pause, puts: false } => _ = callers.spawn(self.clone().writes(node, key, pause)),
            Step::Write { node, key, pause, puts: true } => _ = callers.spawn(self.clone().puts(node, key, pause)),
            Step::ExpireValue { node, key } => {
                let values = self.guards[node].cache::<crate::world::Value>(VIEW);
                // If it is not acknowledged, an invalidation is pending.
                callers.spawn(async move { _ = values.expire(key).await });
            }
            Step::Fault { node, operation, times, ref fault } => {
                self.nodes[node].times(times, operation, fault.clone());
            }
            Step::Heal(node) => self.heal(plan, node),
            Step::FallSilent(ref fault) => {
                for node in &self.nodes {
                    OPERATIONS.iter().for_each(|operation| node.always(*operation, fault.clone()));
                }
            }
            Step::AnswerAgain => (0..plan.nodes).for_each(|node| self.heal(plan, node)),
            Step::Kill(node) => self.nodes[node].kill(),
            Step::KillOnceItLeads(node) => self.nodes[node].kill_once_it_leads(),
            Step::Revive(node) => self.nodes[node].revive(),
            Step::LoseWakes(node) => self.nodes[node].lose_wakes(),
            Step::HearWakes(node) => self.nodes[node].hear_wakes(),
            Step::InvalidateElsewhere(key) => {
                let Ok(_writer) = self.writers[key as usize].try_read() else { return };
                self.world.write(key);
                self.server.invalidate((VIEW, key));
            }
            Step::ExpireLease(key) => self.server.expire_lease((VIEW, key)),
            Step::Evict(key) => self.server.evict((VIEW, key)),
            Step::Flush => self.server.flush(),
        }
    }

    /// Writes a new version, and puts it. No other writer of the key does so meanwhile: of two writers that overlap, the
    /// one counts whose request the store executes last.
    async fn puts(self, node: usize, key: u64, pause: Duration) {
        let _writer = self.writers[key as usize].write().await;
        sleep(pause).await;
        let version = self.world.write(key);
        let (how, ends) = (How::Owned, Ends::Well);
        let ask = Ask { node, key, how, ends, takes: ms(0), within: None, patience: None, held: None };
        let caller = self.world.ask(&ask, true);
        let value = self.world.call(caller, &ask).ended();
        // If it is not acknowledged, its invalidation is pending.
        let put = self.guards[node].cache(VIEW).put(key, value).await;
        self.world.say(format_args!("caller {caller}: put version {version}: {put:?}"));
        self.world.invalidated(node, key, version);
        self.world.answered(caller, Answer::Dropped);
    }

    async fn writes(self, node: usize, key: u64, pause: Duration) {
        let _writer = self.writers[key as usize].read().await;
        let version = self.world.write(key);
        sleep(pause).await;
        // If it is not acknowledged, it is pending, and this node does not serve the old value either.
        _ = self.guards[node].invalidate((VIEW, key)).await;
        self.world.invalidated(node, key, version);
    }

    async fn asks(self, ask: Ask, within: bool) {
        let caller = self.world.ask(&ask, within);
        let mut answer = Box::pin(AssertUnwindSafe(self.fetch(caller, ask)).catch_unwind());
        if let Some(pause) = ask.held {
            if let Some(answer) = (&mut answer).now_or_never() {
                return self.world.answered(caller, answer.map_or(Answer::Panicked, Answer::from));
            }
            sleep(pause).await;
        }
        let (limit, late) = match ask.patience {
            Some(patience) => (patience, Answer::Dropped),
            None => (EVER, Answer::Never),
        };
        let answer = match timeout(limit, answer).await {
            Ok(Ok(answer)) => answer.into(),
            Ok(Err(_)) => Answer::Panicked,
            Err(_) => late,
        };
        self.world.answered(caller, answer);
    }

    fn fetch(&self, caller: usize, ask: Ask) -> BoxFuture<'static, Result<crate::world::Value, Error>> {
        let (values, fleet) = (self.guards[ask.node].cache(VIEW), self.clone());
        Box::pin(async move {
            let call_with = async move |stored: Option<crate::world::Value>| {
                let calling = fleet.world.call(caller, &ask);
                let is_unchanged = calling.renews(stored.as_ref());
                sleep(ask.takes).await;
                if let Some(key) = ask.within {
                    fleet.clone().asks_within(ask.node, key).await;
                }
                match ask.ends {
                    Ends::Well => Ok((calling.ended(), is_unchanged)),
                    Ends::Badly => Err(Down),
                    Ends::Panicking => resume_unwind(Box::new("by plan")), // does not run the panic hook
                }
            };
            let without_stored = call_with.clone();
            let call = async move || without_stored(None).await.map(|(value, _)| value);
            match ask.how {
                How::Owned => values.fetch(ask.key, call).await,
                How::Shared => values.entry(ask.key).fetch_arc(call).await.map(|value| *Arc::as_ref(&value)),
                How::Scoped => values.entry(ask.key).fetch_scoped(call).await,
                How::Validating | How::Refreshing => {
                    let fetch = async move |cx: FetchContext<_>| {
                        let (value, is_unchanged) = call_with(cx.stale().copied()).await?;
                        Ok::<_, Down>(if is_unchanged {
                            cx.unchanged().expect("a value is stored")
                        } else {
                            FetchOutcome::new(value).validator("v")
                        })
                    };
                    let entry = values.entry(ask.key);
                    if ask.how == How::Refreshing {
                        entry.refresh_with(fetch).await
                    } else {
                        entry.fetch_with(fetch).await
                    }
                }
                How::Private => {
                    values
                        .entry(ask.key)
                        .fetch_with(async move |_: FetchContext<_>| {
                            call().await.map(|v| FetchOutcome::new(v).private())
                        })
                        .await
                }
                How::NotStored => {
                    let fetch =
                        async move |_: FetchContext<_>| call().await.map(|v| FetchOutcome::new(v).do_not_store());
                    values.entry(ask.key).fetch_with(fetch).await
                }
            }
        })
    }

    /// Boxed because the future contains itself.
    fn asks_within(self, node: usize, key: u64) -> BoxFuture<'static, ()> {
        let (how, ends) = (How::Owned, Ends::Well);
        let ask = Ask { node, key, how, ends, takes: ms(5), within: None, patience: None, held: None };
        Box::pin(self.asks(ask, true))
    }

    async fn come_to_rest(&self) -> Rest {
        // Pending invalidations end when the server answers.
        for node in &self.nodes {
            node.heal();
            node.revive();
        }
        let drained = async {
            for guard in &self.guards {
                assert_eq!(guard.drain_within(Duration::from_secs(60)).await, 0);
            }
        };
        let drained = timeout(EVER, drained).await.is_ok();
        let in_flight = self.guards.iter().map(StampedeGuard::in_flight).collect();
        let listening = self.nodes.iter().map(Node::listening).collect();
        let reports = self.guards.iter().map(StampedeGuard::stats).collect();
        let leases = self.server.leases();
        testing::advance(ms(2000)).await; // copies and late requests may still arrive
        let tasks = runtime::Handle::current().metrics().num_alive_tasks();
        Rest { drained, in_flight, listening, reports, leases, tasks }
    }
}

/// The name of the view through which callers fetch, and the first part of each key.
pub(crate) const VIEW: &str = "value";
/// Longer than any caller may take.
pub(crate) const EVER: Duration = Duration::from_secs(300);
