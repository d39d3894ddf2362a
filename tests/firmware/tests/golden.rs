#![no_std]
#![no_main]
use defmt_semihosting as _;
