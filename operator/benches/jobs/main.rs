//! Benchmark of jobs, and of the same gangs as plain batch Jobs and as JobSets, on a real control plane with
//! fake nodes: time until pods are created and statuses report it, calls that this takes, and the cost of
//! many jobs at once. Prints the tables of a report; `run.sh` writes its head.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark prints and may panic"
)]

mod bench_cluster;
mod burst;
mod contestant;
mod failure;
mod jobset;
mod observed;
mod process;
mod raw;
mod restart;
mod settings;
mod single;
mod statuses;
mod table;

use bench_cluster::BenchCluster;
use burst::Spread;
use contestant::{Contestant, EIGHT_PODS, FOUR_NODES, Gang};
use settings::Settings;
use table::Table;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(measure(&Settings::from_environment()));
}

/// Measures all contestants, each in a new cluster.
async fn measure(settings: &Settings) {
    let mut tables = Tables::new();
    for contestant in settings.contestants() {
        let measured = measure_one(contestant, settings, &mut tables).await;
        if let Err(why) = measured {
            tables.left_out.push(format!("{} is left out: {why}", contestant.name()));
        }
    }
    tables.print();
}

async fn measure_one(contestant: Contestant, settings: &Settings, tables: &mut Tables) -> Result<(), String> {
    let mut bench = BenchCluster::start(contestant).await?;
    measure_gangs(&mut bench, settings, tables).await;
    for num_jobs in settings.burst_jobs.clone() {
        let raws = measure_raw(&mut bench, settings).await;
        eprintln!("{}: burst of {num_jobs}", contestant.name());
        let burst = burst::measure(&mut bench, num_jobs, &Spread::OneNamespace).await;
        tables.burst(contestant, &num_jobs.to_string(), &burst, &raws);
        if settings.burst_jobs.last() == Some(&num_jobs) {
            measure_running_crowd(&mut bench, num_jobs, settings, tables).await;
        } else {
            bench.clear().await;
        }
    }
    drop(bench);
    for num in settings.namespaces.iter().copied().filter(|_| contestant.is_measured_in_namespaces()) {
        eprintln!("{}: {num} namespaces", contestant.name());
        let mut bench = BenchCluster::start(contestant).await?;
        let raws = measure_raw(&mut bench, settings).await;
        let spread = Spread::Namespaces(bench.make_namespaces(num).await);
        let burst = burst::measure(&mut bench, num, &spread).await;
        tables.burst(contestant, &format!("{num} in {num} namespaces"), &burst, &raws);
    }
    Ok(())
}

/// Measures one gang after another, undisturbed and with faults.
async fn measure_gangs(bench: &mut BenchCluster, settings: &Settings, tables: &mut Tables) {
    let contestant = bench.contestant;
    for gang in settings.gangs.clone() {
        eprintln!("{}: gangs of {gang}", contestant.name());
        let singles = single::measure(bench, gang, settings.rounds).await;
        tables.single(contestant, gang, &singles);
    }
    for gang in [EIGHT_PODS, FOUR_NODES].into_iter().filter(|_| settings.has_failures) {
        for fault in failure::Fault::ALL {
            eprintln!("{}: {gang}, {}", contestant.name(), fault.name());
            tables.failure(contestant, gang, fault, &failure::measure(bench, fault, gang).await);
        }
    }
}

/// Measures a plain client that creates small pods, and then pods like the contestant's.
async fn measure_raw(bench: &mut BenchCluster, settings: &Settings) -> [raw::Raw; 2] {
    let small = raw::measure(bench, settings.raw_pods, &contestant::small_pod()).await;
    let same = bench.contestant.pod();
    [small, raw::measure(bench, settings.raw_pods, &same).await]
}

/// Measures the cost of many running jobs while nothing happens, and of the end of their controller.
async fn measure_running_crowd(
    bench: &mut BenchCluster,
    num_jobs: usize,
    settings: &Settings,
    tables: &mut Tables,
) {
    eprintln!("{}: idle and restart", bench.contestant.name());
    tables.idle(bench.contestant, num_jobs, &restart::idle(bench, settings.idle).await);
    for end in bench.contestant.ends() {
        tables.restart(bench.contestant, num_jobs, *end, &restart::measure(bench, *end).await);
    }
}

/// Tables of the report.
struct Tables {
    singles: Table,
    calls: Table,
    failures: Table,
    bursts: Table,
    costs: Table,
    burst_calls: Table,
    idle: Table,
    restarts: Table,
    left_out: Vec<String>,
}

impl Tables {
    fn new() -> Self {
        Self {
            singles: Table::new(
                "One job after another: ms from its POST, p50 / slowest",
                "gang | pods | first pod | all created | all Running | status says so",
            ),
            calls: Table::new(
                "Calls for one job until quiet",
                "gang | pods | all, without the scheduler | by whom",
            ),
            failures: Table::new(
                "One pod is lost: ms until the gang runs again, p50 / slowest",
                "gang | pods | what happens | pods made | until the last new pod is made | until it is Running",
            ),
            bursts: Table::new(
                "Many jobs of 8 pods at once",
                "gang | jobs | raw small pods/s | raw pods/s of the same | pods created/s | share of small | share of the same | \
                 all Running, s | all statuses report it, s",
            ),
            costs: Table::new(
                "What they cost",
                "gang | jobs | own MiB before | own MiB at its peak | KiB per pod | own CPU ms per pod | CPU ms per pod of others",
            ),
            burst_calls: Table::new("Calls per job of the crowd", "gang | jobs | by whom"),
            idle: Table::new(
                "The crowd runs and nothing happens",
                "gang | jobs | calls a minute | lease renewals a minute | watches begun anew a minute",
            ),
            restarts: Table::new(
                "The controller ends while the crowd runs",
                "gang | jobs | how | s until a new job has a pod | other writes of its own until then | calls",
            ),
            left_out: Vec::new(),
        }
    }

    fn single(&mut self, contestant: Contestant, gang: Gang, singles: &[single::Single]) {
        let times = |time: fn(&single::Single) -> f64| table::middle_and_worst(singles.iter().map(time));
        self.singles.row([
            contestant.name().to_owned(),
            gang.to_string(),
            times(|single| single.first_created),
            times(|single| single.all_created),
            times(|single| single.all_running),
            times(|single| single.reported),
        ]);
        let (total, by_whom) = observed::mean_calls(singles.iter().map(|single| &single.calls));
        self.calls.row([contestant.name().to_owned(), gang.to_string(), format!("{total:.1}"), by_whom]);
    }

    fn failure(
        &mut self,
        contestant: Contestant,
        gang: Gang,
        fault: failure::Fault,
        recoveries: &[failure::Recovery],
    ) {
        let times =
            |time: fn(&failure::Recovery) -> f64| table::middle_and_worst(recoveries.iter().map(time));
        self.failures.row([
            contestant.name().to_owned(),
            gang.to_string(),
            fault.name().to_owned(),
            contestant.pods_after_loss(gang).to_string(),
            times(|recovery| recovery.created),
            times(|recovery| recovery.running),
        ]);
    }

    fn burst(&mut self, contestant: Contestant, jobs: &str, burst: &burst::Burst, raws: &[raw::Raw; 2]) {
        let head = || [contestant.name().to_owned(), jobs.to_owned()];
        let [small, same] = raws;
        let [name, jobs] = head();
        self.bursts.row([
            name,
            jobs,
            format!("{:.0}", small.pods_per_second),
            format!("{:.0}", same.pods_per_second),
            format!("{:.0}", burst.pods_per_second),
            format!("{:.2}", burst.pods_per_second / small.pods_per_second),
            format!("{:.2}", burst.pods_per_second / same.pods_per_second),
            format!("{:.1}", burst.all_running),
            format!("{:.1}", burst.all_reported),
        ]);
        let [name, jobs] = head();
        let mib = |kib: f64| format!("{:.1}", kib / 1024.0);
        self.costs.row([
            name,
            jobs,
            mib(burst.kib_before),
            mib(burst.kib_at_peak),
            format!("{:.1}", (burst.kib_at_peak - burst.kib_before) / burst.num_pods),
            format!("{:.2}", burst.own_cpu_ms_per_pod),
            burst.cpu_of_others.clone(),
        ]);
        let [name, jobs] = head();
        self.burst_calls.row([name, jobs, burst.calls_per_job.clone()]);
    }

    fn idle(&mut self, contestant: Contestant, num_jobs: usize, idle: &restart::Idle) {
        self.idle.row([
            contestant.name().to_owned(),
            num_jobs.to_string(),
            format!("{:.1}", idle.calls),
            format!("{:.1}", idle.renewals),
            format!("{:.1}", idle.watches),
        ]);
    }

    fn restart(
        &mut self,
        contestant: Contestant,
        num_jobs: usize,
        end: restart::End,
        again: &restart::Again,
    ) {
        self.restarts.row([
            contestant.name().to_owned(),
            num_jobs.to_string(),
            end.name().to_owned(),
            format!("{:.2}", again.works_after),
            again.writes.clone(),
            again.num_calls.to_string(),
        ]);
    }

    fn print(&self) {
        for table in [
            &self.singles,
            &self.calls,
            &self.failures,
            &self.bursts,
            &self.costs,
            &self.burst_calls,
            &self.idle,
            &self.restarts,
        ] {
            println!("{table}");
        }
        self.left_out.iter().for_each(|line| println!("\n{line}"));
    }
}
