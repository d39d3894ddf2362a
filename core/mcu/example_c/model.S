/* The flat file in flash, aligned for the DSP loops. */
    .section .rodata.model, "a"
    .balign 4
    .global model, model_end
model:
    .incbin "model.tqlm"
model_end:
