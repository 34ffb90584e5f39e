package facts

import (
	"cmp"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cockroachdb/errors/oserror"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/wal/durable"
)

// Directories of replicas come and go as a whole, whatever a crash leaves. A nil file system is the operating system's.
//
// When a replica goes, the facts learn of it first (Keeper.Note). Then its directory gets another name, and the
// renaming is made durable before anything in the directory is deleted. So deletion has never begun in a directory that
// has the name of a replica's directory, no matter who reads it and what the facts say. A new replica has its
// directory, durably, before the facts learn of it, so the directory of an earlier one doesn't come back in its place.

// goneSuffix is the suffix of the name of a directory that is to be deleted.
const goneSuffix = ".gone"

// MakeGroup creates an empty directory for a new replica. It removes what there is of an earlier one.
func MakeGroup(on vfs.FS, dir string, group uint32) error {
	if err := RemoveGroup(on, dir, group); err != nil {
		return err
	}
	if err := cmp.Or(on, vfs.Default).MkdirAll(GroupDir(dir, group), 0o700); err != nil {
		return err
	}
	if err := durable.SyncDir(on, filepath.Join(dir, GroupsDir)); err != nil {
		return err
	}
	return durable.SyncDir(on, dir)
}

// RemoveGroup removes the directory of a replica that the facts no longer know, if there is one.
func RemoveGroup(on vfs.FS, dir string, group uint32) error {
	fs, path := cmp.Or(on, vfs.Default), GroupDir(dir, group)
	if _, err := fs.Stat(path); err == nil {
		if err := removeAll(fs, path+goneSuffix); err != nil { // of an earlier one, whose deletion has failed
			return err
		}
		if err := fs.Rename(path, path+goneSuffix); err != nil {
			return err
		}
	} else if !oserror.IsNotExist(err) {
		return err
	}
	if _, err := fs.Stat(path + goneSuffix); oserror.IsNotExist(err) {
		return nil
	}
	if err := durable.SyncDir(fs, filepath.Join(dir, GroupsDir)); err != nil {
		return err
	}
	return removeAll(fs, path+goneSuffix)
}

// SweepGroups removes what a crash has left of replicas that were about to be created, or removed, and returns their
// groups. Those replicas have promised nothing, or nothing that still counts.
func (k *Keeper) SweepGroups(on vfs.FS) (swept []uint32, err error) {
	names, err := cmp.Or(on, vfs.Default).List(filepath.Join(k.Plan.Dir, GroupsDir))
	if err != nil && !oserror.IsNotExist(err) {
		return nil, err
	}
	for _, name := range names {
		number, isGone := strings.CutSuffix(name, goneSuffix)
		id, err := strconv.ParseUint(number, 10, 32)
		if err != nil || !isGone && k.Has(uint32(id)) {
			continue
		}
		if isGone {
			err = removeAll(cmp.Or(on, vfs.Default), filepath.Join(k.Plan.Dir, GroupsDir, name))
		} else {
			err = RemoveGroup(on, k.Plan.Dir, uint32(id))
		}
		if err != nil {
			return swept, err
		}
		swept = append(swept, uint32(id))
	}
	return swept, nil
}

func removeAll(fs vfs.FS, path string) error {
	if err := fs.RemoveAll(path); err != nil && !oserror.IsNotExist(err) {
		return err
	}
	return nil
}
