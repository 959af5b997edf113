//! Runs a plan: real guards, over processes of one server, in virtual time.

use crate::{
    plan::{Ask, Ends, How, OP_TIMEOUT, Plan, Step, ms},
    support::Down,
    world::{Answer, Record, World},
};
use futures_util::{FutureExt, future::BoxFuture};
use stampede_guard::{
    Error, Fetch, Fetched, Report, StampedeGuard,
    testing::{self, Event, Process, Server},
};
use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::Duration,
};
use tokio::{
    runtime,
    task::JoinSet,
    time::{sleep, timeout},
};

/// What there is to check.
pub(crate) struct Outcome {
    pub(crate) record: Record,
    pub(crate) history: Vec<Event>,
    /// When everybody had been answered, and all guards were shut down.
    pub(crate) rest: Rest,
}

#[derive(Debug)]
pub(crate) struct Rest {
    pub(crate) shut_down: bool,
    pub(crate) in_flight: Vec<usize>,
    pub(crate) listening: Vec<usize>,
    pub(crate) reports: Vec<Report>,
    /// Leases that are still held.
    pub(crate) leases: usize,
    /// Tasks that are still there when all that was under way has arrived.
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
    server: Server,
    processes: Vec<Process>,
    guards: Vec<StampedeGuard>,
}

async fn simulate(plan: &Plan) -> Outcome {
    let server = Server::new();
    let world = World::new(plan.processes, plan.keys);
    let processes: Vec<_> = (0..plan.processes).map(|_| server.process()).collect();
    let guards = processes.iter().map(|process| guard(process, plan)).collect();
    let fleet = Fleet { world, server, processes, guards };
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

fn guard(process: &Process, plan: &Plan) -> StampedeGuard {
    let settings = &plan.settings;
    let guard = process.guard().policy(settings.policy()).lease(settings.lease).wait(settings.wait);
    let guard = guard.max_fetch(settings.max_fetch).tombstone(settings.tombstone).pass_for(settings.pass_for);
    guard.op_timeout(OP_TIMEOUT)
}

impl Fleet {
    fn slow_down(&self, plan: &Plan, process: usize) {
        for (operation, fault) in &plan.latencies[process] {
            self.processes[process].always(*operation, fault.clone());
        }
    }

    fn take(&self, plan: &Plan, step: &Step, callers: &mut JoinSet<()>) {
        if !matches!(step, Step::Ask(_)) {
            self.world.say(format_args!("script: {step:?}"));
        }
        match *step {
            Step::Ask(ask) => _ = callers.spawn(self.clone().asks(ask, false)),
            Step::Write { process, key, pause } => _ = callers.spawn(self.clone().writes(process, key, pause)),
            Step::Fault { process, operation, times, ref fault } => {
                self.processes[process].times(times, operation, fault.clone());
            }
            Step::Heal(process) => {
                self.processes[process].heal();
                self.slow_down(plan, process);
            }
            Step::Kill(process) => self.processes[process].kill(),
            Step::KillOnceItLeads(process) => self.processes[process].kill_once_it_leads(),
            Step::Revive(process) => self.processes[process].revive(),
            Step::LoseWakes(process) => self.processes[process].lose_wakes(),
            Step::HearWakes(process) => self.processes[process].hear_wakes(),
            Step::InvalidateElsewhere(key) => {
                self.world.write(key);
                self.server.invalidate(key);
            }
            Step::ExpireLease(key) => self.server.expire_lease(key),
            Step::Evict(key) => self.server.evict(key),
            Step::Flush => self.server.flush(),
        }
    }

    async fn writes(self, process: usize, key: u64, pause: Duration) {
        let version = self.world.write(key);
        sleep(pause).await;
        if self.guards[process].invalidate(key).await.is_ok() {
            self.world.invalidated(process, key, version);
        }
    }

    async fn asks(self, ask: Ask, within: bool) {
        let caller = self.world.ask(ask.process, ask.key, within);
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
        let (guard, fleet) = (self.guards[ask.process].clone(), self.clone());
        Box::pin(async move {
            let call = async move || {
                let calling = fleet.world.call(caller, &ask);
                sleep(ask.takes).await;
                if let Some(key) = ask.within {
                    fleet.clone().asks_within(ask.process, key).await;
                }
                match ask.ends {
                    Ends::Well => Ok(calling.ended()),
                    Ends::Badly => Err(Down),
                    Ends::Panicking => resume_unwind(Box::new("by plan")), // without a word from the panic hook
                }
            };
            match ask.how {
                How::Owned => guard.fetch(ask.key, call).await,
                How::Shared => guard.fetch_arc(ask.key, call).await.map(|value| *Arc::as_ref(&value)),
                How::Scoped => guard.fetch_scoped(ask.key, call).await,
                How::Private => {
                    guard
                        .fetch_with(ask.key, async move |_: Fetch<_>| call().await.map(|v| Fetched::new(v).private()))
                        .await
                }
                How::NotStored => {
                    let fetch = async move |_: Fetch<_>| call().await.map(|v| Fetched::new(v).do_not_store());
                    guard.fetch_with(ask.key, fetch).await
                }
            }
        })
    }

    /// Boxed, as it is part of itself.
    fn asks_within(self, process: usize, key: u64) -> BoxFuture<'static, ()> {
        let (how, ends) = (How::Owned, Ends::Well);
        let ask = Ask { process, key, how, ends, takes: ms(5), within: None, patience: None, held: None };
        Box::pin(self.asks(ask, true))
    }

    async fn come_to_rest(&self) -> Rest {
        let shut_down = async {
            for guard in &self.guards {
                guard.shutdown().await;
            }
        };
        let shut_down = timeout(EVER, shut_down).await.is_ok();
        let in_flight = self.guards.iter().map(StampedeGuard::in_flight).collect();
        let listening = self.processes.iter().map(Process::listening).collect();
        let reports = self.guards.iter().map(StampedeGuard::report).collect();
        let leases = self.server.leases();
        testing::advance(ms(2000)).await; // copies and late requests are still under way
        let tasks = runtime::Handle::current().metrics().num_alive_tasks();
        Rest { shut_down, in_flight, listening, reports, leases, tasks }
    }
}

/// Longer than anything takes.
pub(crate) const EVER: Duration = Duration::from_secs(300);
