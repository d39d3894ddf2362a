/* Reset handler for a Cortex-M4F in QEMU, with the C library's semihosting. */
#include <stdint.h>
#include <stdlib.h>

extern uint32_t _stack, _data_load, _data, _data_end, _bss, _bss_end;
extern void initialise_monitor_handles(void);
extern int main(void);

void _init(void) {}
void _fini(void) {}

void reset(void) {
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: the floating-point unit */
    for (uint32_t *to = &_data, *from = &_data_load; to < &_data_end;)
        *to++ = *from++;
    for (uint32_t *to = &_bss; to < &_bss_end;)
        *to++ = 0;
    initialise_monitor_handles();
    exit(main());
}

static void fault(void) {
    for (;;)
        ;
}

__attribute__((section(".vectors"), used)) static const void *const vectors[] = {
    &_stack, reset, fault, fault,
};
