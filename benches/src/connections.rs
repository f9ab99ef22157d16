//! Connections by rdma_cm: how long one takes to be set up, how many a second there are, and what a message of libfabric's costs beyond verbs.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use vervain_tests::free_port;

use crate::perftest::Test;
use crate::process::{LIMIT, Running, output};
use crate::raw_udp::{Column, pingpong};
use crate::report::{Row, Rows, Section, Target, Unit};
use crate::rounds::{Measure, Measured, single};
use crate::setup::Setup;

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
        ("send", single(|| SEND.typical_ns(setup))),
        ("send in packets", single(|| SEND_IN_PACKETS.typical_ns(setup))),
        ("libfabric", single(|| libfabric(setup))),
    ];
    Measured::of(setup.fewer_rounds(), named).section("rdma_cm: connections", HOW, rows)
}

fn rows(measured: &Measured) -> Rows {
    let row = |what, name, number: Number, most: Option<f64>| {
        measured.row(what, Unit::Ns, (name, number as usize), most.map(Target::AtMost))
    };
    // ib_send_lat tells half a round trip.
    let less = |what, ours, send, times, most| {
        let values = measured.combined((ours, 0), (send, 0), |value, send| value - send * times)?;
        Row::new(what, Unit::Ns, &values, Target::AtMost(most))
    };
    let whole = "as above, with identifier, address, route and QP: 5,000 a second";
    let trips = 2.0 * ROUND_TRIPS;
    vec![
        row("set-up on a host", "cmtime", Number::Connect, Some(SET_UP_NS)),
        row(whole, "cmtime", Number::UntilConnected, Some(1e9 / A_SECOND)),
        less("set-up in packets, less 3 round trips", "cmtime in packets", "send in packets", trips, IN_PACKETS_NS),
        row("disconnection on a host", "cmtime", Number::Disconnect, None),
        measured.row("8 B by libfabric", Unit::Ns, ("libfabric", 0), None),
        less("8 B by libfabric, less 1.5 of ib_send_lat", "libfabric", "send", TIMES_SEND, BEYOND_NS),
    ]
}

/// The numbers of [`Number`], in ns for a connection.
fn cmtime(setup: &Setup, options: &[&str]) -> Result<Vec<f64>> {
    let port = free_port().to_string();
    let command = || {
        let mut command = setup.under_vervain(options, "cmtime");
        command.args(["-p", &port]);
        command
    };
    // It serves until it is killed.
    let server = Running::start(&mut command(), Some(setup.cpus.server), LIMIT)?;
    thread::sleep(STARTS);
    let client = &mut command();
    let told = output(client.args(["-c", CONNECTIONS, "-s", "127.0.0.1"]), Some(setup.cpus.client), LIMIT)?;
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
fn libfabric(setup: &Setup) -> Result<f64> {
    // Its verbs provider passes loopback interfaces over.
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect("192.0.2.1:9").context("the host has no address but the loopback's")?;
    let address = socket.local_addr()?.ip().to_string();
    let options = ["-p", "verbs;ofi_rxm", "-e", "rdm", "-S", "8", "-I", MESSAGES];
    let side = || setup.under_vervain(&[], "fi_pingpong");
    Ok(pingpong(setup, side, &options, &address, Column::Transfer)? * 1e3)
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
    }
}
