//! `vervain devices`: the devices, ports and GIDs that a program under `vervain run` is answered, as lines or as JSON.

use std::net::Ipv6Addr;
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use anyhow::Result;
use vervain_config::{Variable, WINDOW, WindowSpec};
use vervain_window::{Facts, Options};

use crate::cli::DevicesArgs;
use crate::environment::Variables;
use crate::inventory::{self, Device};
use crate::{libs, output, settings};

pub fn devices(args: &DevicesArgs) -> Result<ExitCode> {
    let settings = &args.device.settings;
    let variables = settings.in_force(Variable::value)?;
    let dir = libs::directory(args.device.lib_dir.as_deref())?;
    settings::tell_unknown();
    let mut devices =
        inventory::query(&dir.join(libs::LIBIBVERBS), &variables, false).map_err(|e| settings.by_option(e))?;
    let window = name_window(&mut devices, &variables);
    if args.json {
        return output::print(&(serde_json::to_string_pretty(&devices)? + "\n"));
    }
    if devices.is_empty() {
        output::note(&format!("{} lists no device", dir.join(libs::LIBIBVERBS).display()));
        return Ok(ExitCode::FAILURE);
    }
    output::print(&(table(&devices) + &window.unwrap_or_default()))
}

/// Notes of which node of the window a GID is; a line about a window in a device. One that cannot be opened has been
/// complained of.
fn name_window(devices: &mut [Device], variables: &Variables) -> Option<String> {
    let value = variables.iter().find(|(name, _)| *name == WINDOW.name()).map(|(_, value)| value);
    let spec = value.and_then(|value| WindowSpec::of(value.as_bytes()))?;
    let window = vervain_window::open(&spec.path, &Options::of(&spec)).ok()?;
    let facts = window.facts();
    let own = Ipv6Addr::from(facts.gid(facts.node));
    for gid in devices.iter_mut().flat_map(|device| &mut device.ports).flat_map(|port| &mut port.gids) {
        if gid.gid.parse() == Ok(own) {
            gid.window_node = Some(facts.node);
        }
    }
    about(&spec, facts)
}

/// The description of a window in a device; None for files, whose names say enough.
fn about(spec: &WindowSpec, facts: &Facts) -> Option<String> {
    let (medium, speed) = (facts.medium, facts.read_speed?);
    let (mib, nodes) = (facts.layout.size() >> 20, facts.layout.nodes());
    let speed = speed / 1_000_000;
    Some(format!("window {}: {medium}\n  {mib} MiB, {nodes} nodes, read with {speed} MB/s\n", spec.path.display()))
}

/// A line for each port, and below it one for each GID: at most 80 columns, since addresses and names of interfaces
/// have longest lengths.
fn table(devices: &[Device]) -> String {
    let mut out = String::new();
    for (device, port) in devices.iter().flat_map(|device| device.ports.iter().map(move |port| (device, port))) {
        let lid = if port.lid == 0 { String::new() } else { format!(", LID {}", port.lid) };
        let (state, mtu) = (state_name(port.state), port.active_mtu);
        out += &format!("{} port {}: {}, {state}, MTU {mtu}{lid}\n", device.name, port.number, port.link_layer);
        let gids: Vec<_> = port.gids.iter().map(|gid| (gid, short(&gid.gid))).collect();
        let width = gids.iter().map(|(_, text)| text.len()).max().unwrap_or(0);
        for (gid, text) in gids {
            let window = gid.window_node.map(|node| format!("window, node {node}"));
            let from = window.as_deref().or(gid.netdev.as_deref()).unwrap_or("");
            let line = format!("  GID {:<2}  {text:width$}  {}  {from}", gid.index, gid.gid_type);
            out = out + line.trim_end() + "\n";
        }
    }
    out
}

/// A GID as the address that it is: `::ffff:127.0.0.1` is easier to read than eight groups.
fn short(gid: &str) -> String {
    gid.parse::<Ipv6Addr>().map_or_else(|_| gid.to_owned(), |a| a.to_string())
}

/// enum ibv_port_state.
pub fn state_name(state: u32) -> &'static str {
    match state {
        0 => "nop",
        1 => "down",
        2 => "init",
        3 => "armed",
        4 => "active",
        5 => "active, deferred",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_a_line_with_its_gids_below() {
        let json = r#"[{"name":"vervain0","uverbs":"uverbs0","node_type":1,"fw_ver":"1","node_guid":"0:0:0:1",
            "sys_image_guid":"0:0:0:1","vendor_id":1,"vendor_part_id":1,"hw_ver":0,"ports":[{"number":1,"state":4,
            "phys_state":5,"link_layer":"ethernet","active_mtu":4096,"max_mtu":4096,"active_width":2,"active_speed":32,
            "lid":0,"sm_lid":0,"sm_sl":0,"lmc":0,"cap_mask":0,"gid_tbl_len":16,"pkeys":[65535],"gids":[
            {"index":0,"gid":"0000:0000:0000:0000:0000:ffff:7f00:0001","type":"RoCE v2","netdev":"lo"},
            {"index":7,"gid":"fd00:0000:0000:0000:0000:0000:0000:0001","type":"RoCE v2","netdev":"lo","window_node":63},
            {"index":15,"gid":"2001:1db8:1111:2222:3333:4444:5555:6666","type":"RoCE v2","netdev":"fifteenletters0"}]}]}]"#;
        let text = table(&serde_json::from_str::<Vec<Device>>(json).unwrap());
        assert_eq!(
            text,
            "vervain0 port 1: ethernet, active, MTU 4096\n  \
               GID 0   ::ffff:127.0.0.1                         RoCE v2  lo\n  \
               GID 7   fd00::1                                  RoCE v2  window, node 63\n  \
               GID 15  2001:1db8:1111:2222:3333:4444:5555:6666  RoCE v2  fifteenletters0\n"
        );
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    }
}
