//! `vervain devices`: the devices, ports and GIDs that a program under `vervain run` is answered, as a table or as JSON.

use std::fmt::Write;
use std::net::Ipv6Addr;
use std::process::ExitCode;

use anyhow::Result;
use comfy_table::{Table, presets};
use vervain_config::Variable;

use crate::cli::DevicesArgs;
use crate::inventory::{self, Device, Gid, Port};
use crate::{libs, output, settings};

pub fn devices(args: &DevicesArgs) -> Result<ExitCode> {
    let settings = &args.device.settings;
    let variables = settings.in_force(Variable::value)?;
    let dir = libs::directory(args.device.lib_dir.as_deref())?;
    settings::tell_unknown();
    let devices =
        inventory::query(&dir.join(libs::LIBIBVERBS), &variables, false).map_err(|e| settings.by_option(e))?;
    if args.json {
        return output::print(&(serde_json::to_string_pretty(&devices)? + "\n"));
    }
    if devices.is_empty() {
        output::note(&format!("{} lists no device", dir.join(libs::LIBIBVERBS).display()));
        return Ok(ExitCode::FAILURE);
    }
    output::print(&table(&devices))
}

fn table(devices: &[Device]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table.set_header(["device", "port", "link layer", "state", "MTU", "LID", "GID", ""]);
    for device in devices {
        for port in &device.ports {
            table.add_row([
                device.name.clone(),
                port.number.to_string(),
                port.link_layer.clone(),
                state_name(port.state).to_owned(),
                port.active_mtu.to_string(),
                if port.lid == 0 { "-".to_owned() } else { port.lid.to_string() },
                gid_column(port, |g| format!("{}: {}", g.index, short(&g.gid))),
                gid_column(port, |g| format!("{} {}", g.gid_type, g.netdev.as_deref().unwrap_or(""))),
            ]);
        }
    }
    format!("{table}\n")
}

fn gid_column(port: &Port, cell: impl Fn(&Gid) -> String) -> String {
    let mut out = String::new();
    for gid in &port.gids {
        let newline = if out.is_empty() { "" } else { "\n" };
        let _ = write!(out, "{newline}{}", cell(gid).trim_end());
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
    fn a_device_is_one_row_per_port_with_its_gids() {
        let json = r#"[{"name":"vervain0","uverbs":"uverbs0","node_type":1,"fw_ver":"1","node_guid":"0:0:0:1",
            "sys_image_guid":"0:0:0:1","vendor_id":1,"vendor_part_id":1,"hw_ver":0,"ports":[{"number":1,"state":4,
            "phys_state":5,"link_layer":"ethernet","active_mtu":4096,"max_mtu":4096,"active_width":2,"active_speed":32,
            "lid":0,"sm_lid":0,"sm_sl":0,"lmc":0,"cap_mask":0,"gid_tbl_len":16,"pkeys":[65535],"gids":[
            {"index":0,"gid":"0000:0000:0000:0000:0000:ffff:7f00:0001","type":"RoCE v2","netdev":"lo"}]}]}]"#;
        let text = table(&serde_json::from_str::<Vec<Device>>(json).unwrap());
        assert!(text.contains("vervain0") && text.contains("active") && text.contains("4096"), "{text}");
        assert!(text.contains("0: ::ffff:127.0.0.1") && text.contains("RoCE v2 lo"), "{text}");
    }
}
