//! Static rates: `ibv_rate_to_mult(3)`, `ibv_rate_to_mbps(3)` and their inverses.

use core::ffi::c_int;

use crate::abi::*;

/// Each rate with its multiple of 2.5 Gb/s, 0 where the standard's rounded name has none, and its true Mb/s.
const RATES: [(ibv_rate, c_int, c_int); 23] = [
    (IBV_RATE_2_5_GBPS, 1, 2500),
    (IBV_RATE_5_GBPS, 2, 5000),
    (IBV_RATE_10_GBPS, 4, 10_000),
    (IBV_RATE_20_GBPS, 8, 20_000),
    (IBV_RATE_30_GBPS, 12, 30_000),
    (IBV_RATE_40_GBPS, 16, 40_000),
    (IBV_RATE_60_GBPS, 24, 60_000),
    (IBV_RATE_80_GBPS, 32, 80_000),
    (IBV_RATE_120_GBPS, 48, 120_000),
    (IBV_RATE_14_GBPS, 0, 14_062),
    (IBV_RATE_56_GBPS, 0, 56_250),
    (IBV_RATE_112_GBPS, 0, 112_500),
    (IBV_RATE_168_GBPS, 0, 168_750),
    (IBV_RATE_25_GBPS, 0, 25_781),
    (IBV_RATE_100_GBPS, 0, 103_125),
    (IBV_RATE_200_GBPS, 0, 206_250),
    (IBV_RATE_300_GBPS, 0, 309_375),
    (IBV_RATE_28_GBPS, 11, 28_125),
    (IBV_RATE_50_GBPS, 20, 53_125),
    (IBV_RATE_400_GBPS, 160, 425_000),
    (IBV_RATE_600_GBPS, 240, 637_500),
    (IBV_RATE_800_GBPS, 320, 850_000),
    (IBV_RATE_1200_GBPS, 480, 1_275_000),
];

/// A rate as a multiple of 2.5 Gb/s, or -1.
pub extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    RATES.iter().find(|r| r.0 == rate && r.1 != 0).map_or(-1, |r| r.1)
}

/// A multiple of 2.5 Gb/s as a rate, or `IBV_RATE_MAX`.
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    RATES.iter().find(|r| r.1 == mult && r.1 != 0).map_or(IBV_RATE_MAX, |r| r.0)
}

/// A rate in Mb/s, or -1.
pub extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2)
}

/// Mb/s as a rate, or `IBV_RATE_MAX`.
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    RATES.iter().find(|r| r.2 == mbps).map_or(IBV_RATE_MAX, |r| r.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_survives_the_way_there_and_back() {
        for rate in 1..32 {
            let mbps = ibv_rate_to_mbps(rate);
            if mbps != -1 {
                assert_eq!(mbps_to_ibv_rate(mbps), rate);
            }
            let mult = ibv_rate_to_mult(rate);
            if mult != -1 {
                assert_eq!(mult_to_ibv_rate(mult), rate);
            }
        }
    }

    #[test]
    fn values_outside_the_table_have_their_error_value() {
        assert_eq!(ibv_rate_to_mult(IBV_RATE_MAX), -1);
        assert_eq!(ibv_rate_to_mult(IBV_RATE_100_GBPS), -1);
        assert_eq!(ibv_rate_to_mbps(99), -1);
        assert_eq!(mult_to_ibv_rate(0), IBV_RATE_MAX);
        assert_eq!(mult_to_ibv_rate(3), IBV_RATE_MAX);
        assert_eq!(mbps_to_ibv_rate(1), IBV_RATE_MAX);
    }
}
