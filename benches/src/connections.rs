//! Connections by rdma_cm: how long one takes to be set up, how many a second there are, and what a message of libfabric's costs beyond verbs.

use std::net::UdpSocket;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::acp::Measured;
use crate::perftest::Test;
use crate::process::{Running, free_port, wait_for_listener};
use crate::report::{Row, Section, Target, Unit};
use crate::rounds::Measure;
use crate::setup::{LIMIT, Setup};

const HOW: &str = "cmtime of rdmacm-utils makes 1,000 connections, each step for all of them at once; a step takes what one connection has of the\n\
     time of all. fi_pingpong of libfabric exchanges 8 bytes over reliable datagrams (verbs;ofi_rxm), beside ib_send_lat.";
/// Connections that are made at once.
const CONNECTIONS: &str = "1000";
/// The longest that the set-up of one is to take on a host, in ns.
const SET_UP_NS: f64 = 150_000.0;
/// As above, in packets, beyond [`ROUND_TRIPS`].
const IN_PACKETS_NS: f64 = 200_000.0;
const ROUND_TRIPS: f64 = 3.0;
/// Connections in a second.
const A_SECOND: f64 = 5000.0;
/// What a message of libfabric's is to cost at most, beyond 1.5 of ib_send_lat, in ns.
const BEYOND_NS: f64 = 300.0;
const TIMES_SEND: f64 = 1.5;
/// Messages of libfabric's each way: so many that the 80 ms are little in which the first one sets its connection up, and libfabric touches
/// 32 MiB of buffers, for which its clock runs too.
const MESSAGES: &str = "1000000";
/// Until a server listens that says so to nobody.
const STARTS: Duration = Duration::from_millis(700);

const PACKETS: &[&str] = &["--link", "roce", "--interface", "lo"];
const SEND: Test = Test::new("ib_send_lat", 8, 20000);
const SEND_IN_PACKETS: Test = Test { vervain: PACKETS, extra: &["-x", "0"], ..SEND };

/// What is measured of set-ups.
enum Number {
    Connect,
    UntilConnected,
    Disconnect,
}

/// The table.
pub fn section(setup: &Setup) -> Section {
    let cmtime = |options: &'static [&'static str]| -> Measure<'_> { Box::new(move || cmtime(setup, options)) };
    let named: Vec<(&'static str, Measure<'_>)> = vec![
        ("cmtime", cmtime(&[])),
        ("cmtime in packets", cmtime(PACKETS)),
        ("send", Box::new(|| Ok(vec![SEND.typical_ns(setup)?]))),
        ("send in packets", Box::new(|| Ok(vec![SEND_IN_PACKETS.typical_ns(setup)?]))),
        ("libfabric", Box::new(|| Ok(vec![fi_pingpong(setup)?]))),
    ];
    Measured::of(setup, named).section("rdma_cm: connections", HOW, rows)
}

fn rows(measured: &Measured) -> Vec<Result<Option<Row>>> {
    let column = |name, number: Number| measured.column(name, number as usize);
    let less = |values: &[f64], others: &[f64], times: f64| -> Vec<f64> {
        values.iter().zip(others).map(|(value, other)| value - other * times).collect()
    };
    let at_most =
        |what, values: &[f64], most| Row::new(what, Unit::Ns, values).map(|row| row.target(Target::AtMost(most)));
    let in_packets = || {
        let (connect, send) = (column("cmtime in packets", Number::Connect)?, measured.column("send in packets", 0)?);
        // ib_send_lat tells half a round trip.
        Ok(at_most("set-up in packets, less 3 round trips", &less(connect, send, 2.0 * ROUND_TRIPS), IN_PACKETS_NS))
    };
    let libfabric = || {
        let (ours, send) = (measured.column("libfabric", 0)?, measured.column("send", 0)?);
        Ok(at_most("8 B by libfabric, less 1.5 of ib_send_lat", &less(ours, send, TIMES_SEND), BEYOND_NS))
    };
    let whole = || {
        let all = column("cmtime", Number::UntilConnected)?;
        Ok(at_most("as above, with identifier, address, route and QP: 5,000 a second", all, 1e9 / A_SECOND))
    };
    vec![
        column("cmtime", Number::Connect).map(|all| at_most("set-up on a host", all, SET_UP_NS)),
        whole(),
        in_packets(),
        column("cmtime", Number::Disconnect).map(|all| Row::new("disconnection on a host", Unit::Ns, all)),
        measured.column("libfabric", 0).map(|all| Row::new("8 B by libfabric", Unit::Ns, all)),
        libfabric(),
    ]
}

/// The numbers of [`Number`], in ns for a connection.
fn cmtime(setup: &Setup, options: &[&str]) -> Result<Vec<f64>> {
    let port = free_port()?.to_string();
    let command = || {
        let mut command = setup.under_vervain(options, "cmtime");
        command.args(["-p", &port]);
        command
    };
    // It serves until it is killed.
    let server = Running::start(&mut command(), Some(setup.cpus.server), LIMIT)?;
    thread::sleep(STARTS);
    let mut client = command();
    client.args(["-c", CONNECTIONS, "-s", "127.0.0.1"]);
    let told = Running::start(&mut client, Some(setup.cpus.client), LIMIT)?.finish()?;
    drop(server);
    let ns = |step: &str| -> Result<f64> {
        let us = us_of(&told, step).with_context(|| format!("cmtime says nothing of {step}: {told}"))?;
        Ok(us * 1e3)
    };
    let connect = ns("connect")?;
    let before: f64 =
        ["create id", "resolve addr", "resolve route", "create qp"].into_iter().map(ns).sum::<Result<f64>>()?;
    ensure!(connect > 0.0, "cmtime has connected nothing");
    Ok(vec![connect, before + connect, ns("disconnect")?])
}

/// Microseconds for a connection, of a line such as `connect      :       97.69      84.62    9448.00      97.69`.
fn us_of(told: &str, step: &str) -> Option<f64> {
    let line = told.lines().find(|line| line.split(':').next().is_some_and(|name| name.trim() == step))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Half a round trip of 8 bytes, in ns.
fn fi_pingpong(setup: &Setup) -> Result<f64> {
    // Its verbs provider passes loopback interfaces over.
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("192.0.2.1:9").context("the host has no address but the loopback's")?;
    let address = socket.local_addr()?.ip().to_string();
    let port = free_port()?;
    let command = |way: &str| {
        let mut command: Command = setup.under_vervain(&[], "fi_pingpong");
        command.args(["-p", "verbs;ofi_rxm", "-e", "rdm", "-S", "8", "-I", MESSAGES, way, &port.to_string()]);
        command
    };
    let mut server = Running::start(&mut command("-B"), Some(setup.cpus.server), LIMIT)?;
    wait_for_listener(port, &mut server)?;
    let mut client = command("-P");
    let told = Running::start(client.arg(address), Some(setup.cpus.client), LIMIT)?.finish()?;
    server.finish()?;
    let us = us_of_message(&told).with_context(|| format!("fi_pingpong printed no line of numbers: {told}"))?;
    Ok(us * 1e3)
}

/// Microseconds, of a line such as `8       20k     =20k     312k        0.03s      5.05       1.58       0.63`.
fn us_of_message(told: &str) -> Option<f64> {
    let line = told.lines().rfind(|line| line.contains('='))?;
    line.split_whitespace().nth_back(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_in_what_programs_say() {
        let told = "step              total ms     max ms     min us  us / conn\nresolve addr :       20.54       2.88      23.00      20.54\n\
            connect      :       97.69      84.62    9448.00      97.69\n";
        assert_eq!(us_of(told, "connect"), Some(97.69));
        assert_eq!(us_of(told, "resolve addr"), Some(20.54));
        assert_eq!(us_of(told, "disconnect"), None);
        let told = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n8       10      =10      160         0.00s      2.88       2.78       0.36\n";
        assert_eq!(us_of_message(told), Some(2.78));
    }
}
