/* Packs a saved state of llama.cpp, checks the pack, and writes the state that it holds.
 *
 *   cc session.c -I ../include libtqkv_capi.a -lpthread -ldl -lm -o session && ./session chat.bin chat.tqs back.bin
 */
#define TQKV_SESSION
#include <stdio.h>
#include <tqkv.h>

static int failed(const char *what, tqkv_status status) {
    if (status == TQKV_OK) {
        return 0;
    }
    fprintf(stderr, "%s: %s: %s\n", what, tqkv_status_name((uint32_t)status), tqkv_last_error());
    return 1;
}

int main(int count, char **paths) {
    tqkv_session_info info;
    if (count != 4) {
        fprintf(stderr, "usage: session STATE PACK BACK\n");
        return 2;
    }
    if (failed("pack", tqkv_session_pack_file(paths[1], paths[2], "t4", 0)) ||
        failed("inspect", tqkv_session_inspect_file(paths[2], &info, sizeof info)) ||
        failed("unpack", tqkv_session_unpack_file(paths[2], paths[3]))) {
        return 1;
    }
    printf("%zu of %zu bytes\n", info.pack_bytes, info.state_bytes);
    return 0;
}
