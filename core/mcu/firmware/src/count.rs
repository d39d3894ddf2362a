//! Counts the instructions that a closure executes. Under `-icount`, QEMU's time is the instruction count.
//! [`Counter::new`] runs a loop of known length to find the unit. The results are not cycles.

use core::arch::asm;

/// A calibrated counter.
pub struct Counter {
    #[cfg(target_arch = "arm")]
    systick: cortex_m::peripheral::SYST,
    /// Ticks of a loop of [`LOOP`] instructions.
    unit: u32,
    /// Ticks of an empty measurement.
    empty: u32,
}

const LOOP: u32 = 20_000;

/// Executes [`LOOP`] instructions.
#[inline(always)]
fn known() {
    // SAFETY: the assembly only changes the register that it declares.
    unsafe {
        #[cfg(target_arch = "arm")]
        asm!("2: subs {n}, #1", "bne 2b", n = inout(reg) LOOP / 2 => _, options(nomem, nostack));
        #[cfg(target_arch = "riscv32")]
        asm!("2: addi {n}, {n}, -1", "bnez {n}, 2b", n = inout(reg) LOOP / 2 => _, options(nomem, nostack));
    }
}

impl Counter {
    /// Starts and calibrates the counter.
    #[cfg(target_arch = "arm")]
    pub fn new() -> Option<Self> {
        let mut systick = cortex_m::Peripherals::take()?.SYST;
        systick.set_clock_source(cortex_m::peripheral::syst::SystClkSource::Core);
        systick.set_reload(0xff_ffff);
        systick.clear_current();
        systick.enable_counter();
        Some(Self { systick, unit: 0, empty: 0 }.calibrated())
    }

    /// Starts and calibrates the counter.
    #[cfg(target_arch = "riscv32")]
    pub fn new() -> Option<Self> {
        Some(Self { unit: 0, empty: 0 }.calibrated())
    }

    fn calibrated(mut self) -> Self {
        self.empty = self.ticks(|| {});
        self.unit = self.ticks(known) - self.empty;
        self
    }

    #[cfg(target_arch = "arm")]
    fn now(&self) -> u32 {
        let _ = &self.systick;
        cortex_m::peripheral::SYST::get_current()
    }

    #[cfg(target_arch = "riscv32")]
    fn now(&self) -> u32 {
        0_u32.wrapping_sub(riscv::register::minstret::read() as u32)
    }

    #[inline(never)]
    fn ticks(&self, f: impl FnOnce()) -> u32 {
        let start = self.now();
        f();
        let end = self.now();
        let mask = if cfg!(target_arch = "arm") { 0xff_ffff } else { u32::MAX };
        start.wrapping_sub(end) & mask
    }

    /// Starts a timer that interrupts every `instructions` instructions from now on.
    #[cfg(target_arch = "arm")]
    pub fn into_timer(mut self, instructions: u32) -> Timer {
        let period = (u64::from(instructions) * u64::from(self.unit) / u64::from(LOOP)) as u32;
        self.systick.set_reload(period - 1);
        self.systick.clear_current();
        self.systick.enable_interrupt();
        Timer { period, unit: self.unit }
    }

    /// Instructions of `f`, rounded; they include call and return.
    pub fn instructions(&self, f: impl FnOnce()) -> u32 {
        let ticks = self.ticks(f) - self.empty;
        ((u64::from(ticks) * u64::from(LOOP) + u64::from(self.unit / 2)) / u64::from(self.unit)) as u32
    }
}

/// A running timer. Its handler is `SysTick`.
#[cfg(target_arch = "arm")]
#[derive(Clone, Copy)]
pub struct Timer {
    period: u32,
    unit: u32,
}

#[cfg(target_arch = "arm")]
impl Timer {
    /// Instructions since the last tick.
    pub fn late(&self) -> u32 {
        let ticks = self.period - 1 - cortex_m::peripheral::SYST::get_current();
        (u64::from(ticks) * u64::from(LOOP) / u64::from(self.unit)) as u32
    }
}
