//! Two tasks of embassy on one core: a ring takes tokens and attends, and a control loop waits for a timer.
//!
//! The tasks give way to each other between calls of the ring. So the control loop waits for one call at
//! most, and the handler of the timer for none: no call of the ring closes interrupts.
#![no_std]
#![no_main]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use cortex_m_rt::exception;
use defmt_semihosting as _;
use embassy_executor::{Executor, Spawner};
use embassy_futures::yield_now;
use embassy_sync::blocking_mutex::raw::CriticalSectionRawMutex;
use embassy_sync::once_lock::OnceLock;
use embassy_sync::signal::Signal;
use firmware::count::{Counter, Timer};
use static_cell::{ConstStaticCell, StaticCell};
use tqkv_core::code::S4;
use tqkv_core::fixed::{ExactTokens, FixedCodec, RingCache};
use workload::{EXPONENT, FASTEST, Fastest, vector};

const TOKENS: u32 = 400;
/// Instructions from one tick to the next, about a millisecond at 168 MHz.
const PERIOD: u32 = 168_000;

type Exact = ExactTokens<128, i8, 4, 16>;
static CODEC: FixedCodec<128, S4, Fastest> = FixedCodec::DEFAULT.with_kernels(FASTEST);
static MEMORY: ConstStaticCell<[u8; RingCache::<128, S4, S4>::bytes_for(44)]> =
    ConstStaticCell::new([0; RingCache::<128, S4, S4>::bytes_for(44)]);
static EXACT: ConstStaticCell<Exact> = ConstStaticCell::new(Exact::new());

static TIMER: OnceLock<Timer> = OnceLock::new();
static TICK: Signal<CriticalSectionRawMutex, ()> = Signal::new();
static TICKS: AtomicU32 = AtomicU32::new(0);
/// The most instructions from a tick to its handler.
static HANDLER: AtomicU32 = AtomicU32::new(0);
/// The fewest and the most instructions from a tick to the control loop.
static SOONEST: AtomicU32 = AtomicU32::new(u32::MAX);
static LATEST: AtomicU32 = AtomicU32::new(0);
static SEEN: AtomicU32 = AtomicU32::new(0);

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    defmt::error!("panic");
    firmware::exit(101)
}

#[exception]
fn SysTick() {
    if let Some(timer) = TIMER.try_get() {
        HANDLER.fetch_max(timer.late(), Relaxed);
        TICKS.fetch_add(1, Relaxed);
        TICK.signal(());
    }
}

#[embassy_executor::task]
async fn control() {
    let timer = TIMER.get().await;
    loop {
        TICK.wait().await;
        SOONEST.fetch_min(timer.late(), Relaxed);
        LATEST.fetch_max(timer.late(), Relaxed);
        SEEN.fetch_add(1, Relaxed);
    }
}

#[embassy_executor::task]
async fn cache() {
    let mut ring = RingCache::new(&CODEC, &CODEC, MEMORY.take(), 0).with_exact(EXACT.take());
    let mut out = [0; 128];
    for token in 0..TOKENS {
        let pushed = ring.push(&vector(token), EXPONENT, &vector(token + 1000), EXPONENT).is_ok();
        yield_now().await;
        let attended = ring.attend(&vector(token), EXPONENT, EXPONENT, &mut out).is_ok();
        yield_now().await;
        if !(pushed && attended) {
            firmware::exit(1);
        }
    }
    let mut crc = workload::Crc::default();
    crc.samples(&out);
    defmt::info!("tokens {=usize}", ring.len());
    defmt::info!("attended {=u32:08x}", crc.value());
    for (name, value) in [
        ("ticks", &TICKS),
        ("seen", &SEEN),
        ("handler", &HANDLER),
        ("soonest", &SOONEST),
        ("latest", &LATEST),
    ] {
        defmt::info!("{=str} {=u32}", name, value.load(Relaxed));
    }
    firmware::exit(0)
}

fn spawn(spawner: Spawner) {
    match (control(), cache()) {
        (Ok(control), Ok(cache)) => {
            spawner.spawn(control);
            spawner.spawn(cache);
        }
        _ => firmware::exit(1),
    }
}

#[firmware::entry]
fn main() -> ! {
    static EXECUTOR: StaticCell<Executor> = StaticCell::new();
    let Some(counter) = Counter::new() else { firmware::exit(1) };
    if TIMER.init(counter.into_timer(PERIOD)).is_err() {
        firmware::exit(1);
    }
    EXECUTOR.init(Executor::new()).run(spawn)
}
