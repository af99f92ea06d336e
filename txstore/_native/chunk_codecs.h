/*
 * chunk_codecs.h: the compressors in numcodecs' libraries, and the codec chain that encodes and decodes a chunk.
 *
 * This file implements no compressor. numcodecs' extension modules contain zstd and Blosc and export their functions,
 * so dlsym finds them in files that are mapped anyway. If dlsym fails (another build of numcodecs, another system), the
 * codec counts as missing, and zarr's own pipeline is used.
 *
 * A codec chain turns the bytes of an array in memory into the stored value: at most one compressor, and CRC-32C
 * checksums before or after it. A `worker` has the buffers and contexts that one thread reuses for each chunk.
 */

#ifndef TXSTORE_CHUNK_CODECS_H
#define TXSTORE_CHUNK_CODECS_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"

#define MAX_CODECS 8
#define CHECKSUM_BYTES 4
#define BLOSC_OVERHEAD 16
#define ZSTD_LEVEL 100    /* ZSTD_c_compressionLevel */
#define ZSTD_CHECKSUM 201 /* ZSTD_c_checksumFlag */

enum { CODEC_CRC32C, CODEC_ZSTD, CODEC_BLOSC };

typedef struct {
    void *(*zstd_new_encoder)(void);
    size_t (*zstd_free_encoder)(void *);
    size_t (*zstd_set)(void *, int, int);
    size_t (*zstd_encode)(void *, void *, size_t, const void *, size_t);
    size_t (*zstd_bound)(size_t);
    void *(*zstd_new_decoder)(void);
    size_t (*zstd_free_decoder)(void *);
    size_t (*zstd_decode)(void *, void *, size_t, const void *, size_t);
    unsigned (*zstd_is_error)(size_t);
    int (*blosc_encode)(int, int, size_t, size_t, const void *, void *, size_t, const char *, size_t, int);
    int (*blosc_decode)(const void *, void *, size_t, int);
    int (*blosc_check)(const void *, size_t, size_t *);
} libraries;

typedef struct {
    int kind;
    int level, flag; /* flag: zstd's checksum; Blosc's shuffle */
    size_t typesize, blocksize;
    char name[16]; /* Blosc's compressor */
} codec;

typedef struct {
    const libraries *libraries;
    codec codecs[MAX_CODECS]; /* in the order of encoding */
    int count;
} codec_chain;

typedef struct {
    void *encoder, *decoder;
    uint8_t *plain, *packed; /* of one chunk each: its bytes in memory, and encoded */
    size_t plain_size, packed_size;
} worker;

static int
load_zstd(libraries *found, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return 0;
    /* Through a union of pointers, because C has no cast from void * to a function. */
#define FIND(field, name) (*(void **)&found->field = dlsym(library, name))
    return FIND(zstd_new_encoder, "ZSTD_createCCtx") && FIND(zstd_free_encoder, "ZSTD_freeCCtx") &&
           FIND(zstd_set, "ZSTD_CCtx_setParameter") && FIND(zstd_encode, "ZSTD_compress2") &&
           FIND(zstd_bound, "ZSTD_compressBound") && FIND(zstd_new_decoder, "ZSTD_createDCtx") &&
           FIND(zstd_free_decoder, "ZSTD_freeDCtx") && FIND(zstd_decode, "ZSTD_decompressDCtx") &&
           FIND(zstd_is_error, "ZSTD_isError");
}

static int
load_blosc(libraries *found, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return library != NULL && FIND(blosc_encode, "blosc_compress_ctx") && FIND(blosc_decode, "blosc_decompress_ctx") &&
           FIND(blosc_check, "blosc_cbuffer_validate");
#undef FIND
}

/* Returns a buffer of at least `size` bytes, which the worker keeps, or NULL. */
static uint8_t *
room(uint8_t **buffer, size_t *has, size_t size)
{
    if (*has < size || *buffer == NULL) {
        free(*buffer);
        *has = size;
        *buffer = malloc(size ? size : 1);
    }
    return *buffer;
}

static void
worker_clear(worker *w, const libraries *l)
{
    if (w->encoder != NULL)
        l->zstd_free_encoder(w->encoder);
    if (w->decoder != NULL)
        l->zstd_free_decoder(w->decoder);
    free(w->plain);
    free(w->packed);
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

static const codec *
compressor_of(const codec_chain *chain)
{
    for (int i = 0; i < chain->count; i++)
        if (chain->codecs[i].kind != CODEC_CRC32C)
            return &chain->codecs[i];
    return NULL;
}

/* Checks and removes one checksum; returns the remaining length, or -1. */
static int64_t
without_checksum(const uint8_t *data, int64_t length)
{
    uint32_t stored;
    if (length < CHECKSUM_BYTES)
        return -1;
    memcpy(&stored, data + length - CHECKSUM_BYTES, sizeof stored); /* little-endian, like every machine that this module supports */
    length -= CHECKSUM_BYTES;
    return txs_crc32c(0, data, (size_t)length) == stored ? length : -1;
}

static int64_t
decompress(worker *w, const libraries *l, const codec *c, const uint8_t *data, int64_t length, uint8_t *plain, size_t size)
{
    if (c->kind == CODEC_ZSTD) {
        if (w->decoder == NULL && (w->decoder = l->zstd_new_decoder()) == NULL)
            return -1;
        size_t got = l->zstd_decode(w->decoder, plain, size, data, (size_t)length);
        return l->zstd_is_error(got) ? -1 : (int64_t)got;
    }
    size_t says;
    if (l->blosc_check(data, (size_t)length, &says) < 0 || says > size)
        return -1;
    return l->blosc_decode(data, plain, size, 1);
}

/*
 * Decodes a stored chunk to `size` bytes. They are at *plain: in the stored value itself, or at `into`, which has room
 * for them. Returns 0, or -1 if the stored value does not decode to `size` bytes.
 */
static int
decode(worker *w, const codec_chain *chain, const uint8_t *data, int64_t length, uint8_t *into, size_t size,
       const uint8_t **plain)
{
    const codec *compressor = compressor_of(chain);
    int i = chain->count - 1;
    for (; i >= 0 && chain->codecs[i].kind == CODEC_CRC32C; i--)
        if ((length = without_checksum(data, length)) < 0)
            return -1;
    *plain = data;
    if (compressor != NULL) {
        /* The compressor's input is longer by the checksums that come before it. */
        size_t whole = size + (size_t)i * CHECKSUM_BYTES;
        uint8_t *to = i == 0 ? into : room(&w->packed, &w->packed_size, whole);
        if (to == NULL || (length = decompress(w, chain->libraries, compressor, data, length, to, whole)) < 0)
            return -1;
        *plain = to;
        for (i--; i >= 0; i--)
            if ((length = without_checksum(to, length)) < 0)
                return -1;
    }
    return (size_t)length == size ? 0 : -1;
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

/* The largest length that one codec makes of `size` bytes. */
static size_t
codec_bound(const libraries *l, const codec *c, size_t size)
{
    switch (c->kind) {
    case CODEC_CRC32C:
        return size + CHECKSUM_BYTES;
    case CODEC_ZSTD:
        return l->zstd_bound(size);
    default:
        return size + BLOSC_OVERHEAD;
    }
}

/* The largest encoded length of `size` bytes. */
static size_t
encoded_bound(const codec_chain *chain, size_t size)
{
    for (int i = 0; i < chain->count; i++)
        size = codec_bound(chain->libraries, &chain->codecs[i], size);
    return size;
}

static int64_t
compress(worker *w, const libraries *l, const codec *c, const uint8_t *plain, size_t size, uint8_t *to, size_t has)
{
    if (c->kind == CODEC_ZSTD) {
        if (w->encoder == NULL) {
            if ((w->encoder = l->zstd_new_encoder()) == NULL)
                return -1;
            if (l->zstd_is_error(l->zstd_set(w->encoder, ZSTD_LEVEL, c->level)) ||
                l->zstd_is_error(l->zstd_set(w->encoder, ZSTD_CHECKSUM, c->flag)))
                return -1;
        }
        size_t got = l->zstd_encode(w->encoder, to, has, plain, size);
        return l->zstd_is_error(got) ? -1 : (int64_t)got;
    }
    int got = l->blosc_encode(c->level, c->flag, c->typesize, size, plain, to, has, c->name, c->blocksize, 1);
    return got > 0 ? got : -1;
}

/*
 * Encodes `size` bytes at `plain` to `to`, which has room for `encoded_bound` bytes. Behind `plain` there is room for
 * the checksums that come before a compressor; if the first codec is none, `plain` is not written to. Returns the
 * length, or -1.
 */
static int64_t
encode(worker *w, const codec_chain *chain, uint8_t *plain, size_t size, uint8_t *to)
{
    uint8_t *data = plain;
    for (int i = 0; i < chain->count; i++) {
        const codec *c = &chain->codecs[i];
        if (c->kind == CODEC_CRC32C) {
            uint32_t checksum = txs_crc32c(0, data, size);
            memcpy(data + size, &checksum, sizeof checksum);
            size += CHECKSUM_BYTES;
        } else {
            /* A compressor may fill all the room that it is given: the rest is for the codecs behind it. */
            size_t has = codec_bound(chain->libraries, c, size);
            int64_t length = compress(w, chain->libraries, c, data, size, to, has);
            if (length < 0)
                return -1;
            data = to;
            size = (size_t)length;
        }
    }
    if (data != to)
        memcpy(to, data, size);
    return (int64_t)size;
}

#endif
