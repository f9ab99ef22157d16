//! Jobs with parts on two hosts, which are network namespaces joined by a cable: saved while they work, killed, and brought back on hosts
//! with the same addresses and with others.

use std::fs;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use vervain_tests::netns::{Host, Network};
use vervain_tests::supervised::{LIMIT, Site, can_freeze};
use vervain_tests::{Failures, Job, OPEN_MPI, alone, app_program, have, vervain};

/// Of the ranks' program: enough for all checkpoints to be made in the midst of them.
const ITERATIONS: &str = "500";
/// MTU of the cable.
const MTU: u32 = 1500;
/// The port of perftest, 18515, in a line of /proc/net/tcp on which somebody listens. Without spaces, by which `job rsh` may part words.
const LISTENS: &str = ":4853.[0-9A-F]*:0000.0A";
/// Addresses of the two hosts where a job is brought back elsewhere.
const OTHERS: [[&str; 2]; 2] = [["10.47.92.7", "fd47:92::7"], ["10.47.92.8", "fd47:92::8"]];

/// How an agent is started on the second host.
fn remote_start(network: &Network) -> String {
    format!("sh -c 'exec nsenter -t {} -n -u -- \"$@\"' {{}}", network.second().pid())
}

/// A job whose standard output is a file.
struct Work<'a> {
    site: &'a Site,
    name: &'a str,
    output: PathBuf,
    /// While it is there, the ranks do not end.
    stay: PathBuf,
    supervisor: Job,
}

impl<'a> Work<'a> {
    fn start(site: &'a Site, network: &Network, name: &'a str, script: &str) -> Work<'a> {
        let [output, stay] = ["output", "stays"].map(|what| site.path(&format!("{name}-{what}")));
        fs::write(&stay, "").expect("the file for which ranks stay");
        let mut command = site.vervain(&["job", "run", "--name", name, "--interface", "eth0", "--criu"]);
        command.arg(site.criu()).args(["--remote-start", &remote_start(network), "--", "sh", "-c"]);
        command.arg(format!("STAY={}; exec >{} 2>&1; {script}", stay.display(), output.display()));
        let supervisor = Job::start(&mut network.first().enter(&command));
        Work { site, name, output, stay, supervisor }
    }

    /// As long as it has not written a line that `is_there`.
    fn until(&mut self, is_there: impl Fn(&str) -> bool) -> Result<(), String> {
        let until = Instant::now() + LIMIT;
        while !self.written().lines().any(&is_there) {
            if !self.supervisor.running() || Instant::now() > until {
                return Err(format!("{}\n{}", self.written(), self.supervisor.output()));
            }
            sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn written(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    fn saved(&mut self) -> Result<(), String> {
        let end = self.site.checkpoint(self.name);
        if end.success() {
            Ok(())
        } else {
            Err(format!("{}\n{}\n{}", end.describe(), self.supervisor.output(), self.written()))
        }
    }

    /// Kills all of it, and has it brought back on the hosts of `network`.
    fn again(self, network: &Network, map: Option<&str>) -> Result<Work<'a>, String> {
        self.site.kill(self.supervisor)?;
        let mut command = self.site.vervain(&["restart", &self.site.checkpoints(self.name), "--criu"]);
        command.arg(self.site.criu()).args(["--remote-start", &remote_start(network)]);
        command.args(map.iter().flat_map(|map| ["--map", map]));
        let supervisor = Job::start(&mut network.first().enter(&command));
        let mut work = Work { supervisor, ..self };
        let until = Instant::now() + LIMIT;
        while work.site.status(work.name).and_then(|status| status["processes"].as_u64()).is_none_or(|count| count == 0)
        {
            if !work.supervisor.running() || Instant::now() > until {
                return Err(format!("it is not brought back: {}", work.supervisor.output()));
            }
            sleep(Duration::from_millis(20));
        }
        Ok(work)
    }

    fn ends(self) -> Result<String, String> {
        fs::remove_file(self.stay).map_err(|e| e.to_string())?;
        let end = self.supervisor.finish(LIMIT);
        let written = fs::read_to_string(&self.output).unwrap_or_default();
        if end.success() { Ok(written) } else { Err(format!("{}\n{written}", end.describe())) }
    }
}

/// Two hosts with other addresses.
fn elsewhere() -> Option<(Network, String)> {
    let network = Network::of_two(MTU)?;
    let move_to = |host: &Host, [v4, v6]: [&str; 2]| {
        host.ip(&["address", "add", &format!("{v4}/24"), "dev", "eth0"]);
        host.ip(&["address", "del", &format!("{}/24", host.v4), "dev", "eth0"]);
        host.ip(&["address", "add", &format!("{v6}/64"), "dev", "eth0", "nodad"]);
        host.ip(&["address", "del", &format!("{}/64", host.v6), "dev", "eth0"]);
        format!("{}={v4},{}={v6}", host.v4, host.v6)
    };
    let hosts = [network.first(), network.second()];
    let map: Vec<String> = hosts.into_iter().zip(OTHERS).map(|(host, new)| move_to(host, new)).collect();
    Some((network, map.join(",")))
}

#[test]
fn pairs_on_two_hosts_go_on_where_they_were_and_elsewhere() {
    if !have(&["ib_send_lat", "ib_write_bw", "nsenter"]) || !can_freeze() {
        return;
    }
    let (Some(site), Some(network)) = (Site::new(), Network::of_two(MTU)) else { return };
    let _turn = alone();
    let mut failures = Failures::default();
    for (name, end) in [("write-bw", "ib_write_bw -F -x 0 -D 5"), ("send-lat", "ib_send_lat -F -x 0 -D 5")] {
        // One pair behind the other, since no traffic of a given length is still there at the last checkpoint on a machine of any speed.
        let script = format!(
            "while [ -e $STAY ]; do {vervain} job rsh {second} exec {end} >{log} 2>&1 & server=$!; \
             until {vervain} job rsh {second} grep -q {LISTENS} /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done; \
             echo begun; {end} {second} && wait $server || exit 1; done; echo well",
            vervain = vervain().display(),
            second = network.second().v4,
            log = site.path(&format!("{name}-server")).display(),
        );
        let tried = || -> Result<(), String> {
            let mut work = Work::start(&site, &network, name, &script);
            work.until(|line| line == "begun")?;
            let mut networks = Vec::new();
            // In the midst of traffic, and before there is any.
            for pause in [800, 300] {
                sleep(Duration::from_millis(pause));
                work.saved()?;
                // Others with the same addresses: ports that connections have left behind are not waited for.
                let Some(others) = Network::of_two(MTU) else { return Ok(()) };
                work = work.again(&others, None)?;
                networks.push(others);
            }
            let Some((elsewhere, map)) = elsewhere() else { return Ok(()) };
            sleep(Duration::from_millis(300));
            work.saved()?;
            let work = work.again(&elsewhere, Some(&map))?;
            let written = work.ends()?;
            if written.lines().filter(|line| *line == "well").count() == 1 { Ok(()) } else { Err(written) }
        };
        let began = Instant::now();
        if let Err(why) = tried() {
            failures.add(name, why);
        }
        println!("{name}: {:.1} s", began.elapsed().as_secs_f64());
    }
    failures.assert_none();
}

/// The words of `tests/apps/wavefront.c`.
fn words() -> [&'static str; 4] {
    ["W", ITERATIONS, "unchecked", "every=10"]
}

/// A command that runs it with a rank on each host.
fn sweeps(network: &Network) -> String {
    let (launcher, arguments) = (OPEN_MPI.launcher, OPEN_MPI.arguments.join(" "));
    let program = app_program(OPEN_MPI.compiler, "wavefront");
    let (first, second, words) = (network.first().v4, network.second().v4, words().join(" "));
    format!(
        "{launcher} --host {first},{second} -n 2 {arguments} -x UCX_TLS=rc_v,self {} {words} stay=$STAY",
        program.display()
    )
}

/// What it prints in its steps.
fn steps(text: &str) -> Vec<String> {
    text.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned).collect()
}

/// What it prints where nothing disturbs it.
fn undisturbed() -> Vec<String> {
    let program = app_program(OPEN_MPI.compiler, "wavefront");
    steps(&Job::start(OPEN_MPI.launch("auto", 2, program).args(words())).finish(LIMIT).output)
}

#[test]
fn ranks_on_two_hosts_go_on_where_they_were_and_elsewhere() {
    if !OPEN_MPI.is_there() || !have(&["nsenter"]) || !can_freeze() {
        return;
    }
    let (Some(site), Some(network)) = (Site::new(), Network::of_two(MTU)) else { return };
    let _turn = alone();
    let script = sweeps(&network);
    let tried = || -> Result<(), String> {
        let expected = undisturbed();
        let mut work = Work::start(&site, &network, "ranks", &script);
        work.until(|line| line.starts_with("30 "))?;
        work.saved()?;
        let Some(others) = Network::of_two(MTU) else { return Ok(()) };
        work = work.again(&others, None)?;
        work.until(|line| line.starts_with("60 "))?;
        work.saved()?;
        let Some((elsewhere, map)) = elsewhere() else { return Ok(()) };
        let written = work.again(&elsewhere, Some(&map))?.ends()?;
        if steps(&written) == expected && written.contains("wavefront W 2 ranks") {
            Ok(())
        } else {
            Err(format!("{written}\nand not {expected:?}"))
        }
    };
    let began = Instant::now();
    if let Err(why) = tried() {
        panic!("{why}");
    }
    println!("{:.1} s", began.elapsed().as_secs_f64());
}

#[test]
fn two_jobs_on_two_hosts_take_turns() {
    if !OPEN_MPI.is_there() || !have(&["nsenter"]) || !can_freeze() {
        return;
    }
    let (Some(site), Some(network)) = (Site::new(), Network::of_two(MTU)) else { return };
    let _turn = alone();
    let script = sweeps(&network);
    let tried = || -> Result<(), String> {
        let expected = undisturbed();
        let mut jobs = ["a", "b"].map(|name| Work::start(&site, &network, name, &script));
        for job in &mut jobs {
            job.until(|line| line.starts_with("10 "))?;
        }
        let end = site.say(&["gang", "a", "b", "--slice", "50ms", "--switches", "40"]);
        if !end.success() || !end.output.contains("40 switches") {
            return Err(format!("{}\n{}", end.describe(), jobs.map(|job| job.supervisor.output()).join("\n")));
        }
        println!("{}", end.output);
        // Nobody holds them any more.
        for job in jobs {
            let written = job.ends()?;
            if steps(&written) != expected {
                return Err(format!("{written}\nand not {expected:?}"));
            }
        }
        Ok(())
    };
    if let Err(why) = tried() {
        panic!("{why}");
    }
}

#[test]
fn what_is_missing_for_other_hosts_is_told() {
    let Some(site) = Site::new() else { return };
    let _turn = alone();
    let rsh = format!("{} job rsh 10.47.91.2 true", vervain().display());
    let end = Job::start(site.run("alone", &[]).args(["sh", "-c", &rsh])).finish(LIMIT);
    assert!(end.output.contains("--remote-start"), "{}", end.describe());
    assert_eq!(end.code(), Some(255), "{}", end.describe());
    let end =
        Job::start(site.vervain(&["job", "rsh", "10.47.91.2", "true"]).env_remove("XDG_RUNTIME_DIR")).finish(LIMIT);
    assert!(end.output.contains("inside of a job"), "{}", end.describe());
    let end = Job::start(site.run("private", &["--remote-start", "ssh"]).arg("true")).finish(LIMIT);
    assert!(end.output.contains("network of the hosts"), "{}", end.describe());
    let mut command = site.vervain(&["job", "run", "--name", "lost", "--criu"]);
    let end =
        Job::start(command.arg(site.criu()).args(["--remote-start", "false", "--", "sh", "-c", &rsh])).finish(LIMIT);
    assert!(end.output.contains("no agent on 10.47.91.2"), "{}", end.describe());
}
